"""What may happen to two runs beside each other, and what must hold after each event."""

import functools
import pathlib
import re
import shutil
import time
import traceback

from lingpipe.training import checkpoints
from tests.fuzz_runs import commands, configs, folders, strikes, values
from tests.fuzz_runs.folders import require

NAMES = (('exp[1]', 'exp1'), ('a b', 'ünï cödé'), ('v1.0', 'v1.0-ckpt-3'), ('a?b', 'axb'),
         ("it's", '%s{x}'), ('ckpt-7', 'best'))
_STOPPED = re.compile(r'Stopped by (\w+) (?:at step (\d+)|in the final evaluation); checkpoint (.+?)\. Run the same')
_FINAL = re.compile(r'^Final Test after (\d+) steps: loss ([\d.]+)$', re.MULTILINE)
_PATTERN = re.compile(r'[*?\[\\]')
_MODES = {'evaluate': 'eval', 'export': 'export', 'report': 'report'}
_CONTINUED = {'STOP', 'nohup', 'pipe'}
_SECONDS_TO_FOLLOW = 60


class Life:
    """Two runs; each public method is an event, and raises `folders.Broken` where something does not hold then."""

    def __init__(self, root, names, references):
        self._root, self._notes = pathlib.Path(root, 'runs'), pathlib.Path(root, 'notes')
        self._root.mkdir()
        self._notes.mkdir()
        self._folders = [folders.Folder(self._root / name, references) for name in names]
        self.events = []

    def do(self, event, *arguments):
        """Let an event happen, by its name."""
        self.events.append((event, *arguments))
        try:
            if event != 'end' and _PATTERN.search(self._folders[arguments[0]].path.name):
                self._check_name_refused(event, arguments[0])
            else:
                getattr(self, event)(*arguments)
        except folders.Broken:
            raise
        except Exception as error:  # noqa: BLE001
            raise folders.Broken(f'the fuzzer failed: {error!r}: {traceback.format_exc()}') from error

    def _check_name_refused(self, event, which):
        """A name that TensorFlow takes for a pattern is refused, and no other run is touched."""
        folder, before = self._folders[which], self._folders[1 - which].contents()
        result = self._command(_MODES.get(event, 'train'), folder)
        require(result.code == 1 and 'Error: --logdir=' in result.output, 'a name that is a pattern was not refused',
                result.code, result.output[-500:])
        require(not folder.path.exists(), 'a refused run has made a folder')
        require(self._folders[1 - which].contents() == before, 'another run was changed')

    def train(self, which, config, strike=None):
        """Train with a configuration; a run that is there resumes, or is refused."""
        folder, other = self._folders[which], self._folders[1 - which]
        before, kept, contents = other.contents(), folder.complete(), folder.contents()
        start = folder.newest_step()
        is_other = bool(kept) and config.structure != folder.config.structure
        changes_batch = bool(kept) and config.batch_size != folder.config.batch_size
        previous = folder.config
        if not is_other:
            folder.begin(config)
        words = ['train', f'--logdir={folder.path.name}', *config.words()]
        holds_lock = strike and strike.moment in (strikes.BATCH, strikes.EVALUATION)
        during = functools.partial(self._look_at_paused, which) if holds_lock else lambda: None
        result = commands.run(words, self._root, self._notes, strike, during)
        require(other.contents() == before, 'another run was changed', other.path)
        require('Traceback' not in result.output, 'a traceback', result.output[-1500:])
        if is_other:
            folder.config = previous
            return self._check_refusal(result, folder, contents, strike)
        folder.check()
        self._check_code(result, strike, folder)
        self._check_kept(kept, folder, result)
        if changes_batch and result.position is not None:
            require(result.position == folder.examples_seen(start) or 'batch_size' in result.output,
                    'another batch size silently repeats or skips examples',
                    f'{result.position} instead of {folder.examples_seen(start)}')
        self._check_end(result, strike, folder, start)
        folder.check_losses(result.output)

    def _check_refusal(self, result, folder, contents, strike):
        if strike is None or not result.is_struck:
            require(result.code == 1 and 'Error: ' in result.output, 'a change that cannot be was not refused',
                    result.code, result.output[-500:])
        require(folder.contents() == contents, 'a refused command has changed files', result.output[-500:])

    def _check_code(self, result, strike, folder):
        if result.code == 0:
            require(folder.newest_step() >= folder.config.max_steps, 'exit code 0 of a stopped run',
                    result.output[-500:])
        fault = strike.fault if strike and result.is_struck else 'none'
        is_outside = 'First step after' not in result.output or bool(_FINAL.search(result.output))
        require(result.code in _allowed_codes(fault, is_outside), f'exit code {result.code} after {fault}',
                result.output[-1500:])

    def _check_kept(self, before, folder, result):
        after = folder.complete()
        for path in set(before) - set(after):
            newer = [each for each in after if checkpoints.step_of(each) > checkpoints.step_of(path)]
            require(len(newer) >= folder.config.save_max_to_keep, 'a complete checkpoint was lost', path,
                    result.output[-500:])

    def _check_end(self, result, strike, folder, start):
        """Check what a run says at its end."""
        if result.code not in (0, 75):
            return
        newest, max_steps = folder.newest_step(), folder.config.max_steps
        stopped = _STOPPED.search(result.output)
        fault = strike.fault if strike and result.is_struck else None
        if stopped:
            require(fault not in {None, *_CONTINUED}, 'a run stopped that nobody has stopped', result.output[-500:])
            path = folder.path.parent / stopped[3]
            require(str(path) in folder.complete() and checkpoints.step_of(path) == newest,
                    'the checkpoint of a stopped run is not the newest', stopped[0], folder.complete())
        elif fault in {None, *_CONTINUED}:
            require(newest == max(start, max_steps), 'exit code 0 before the last step', newest, result.output[-500:])
        final = _FINAL.search(result.output)
        if final:
            path = folder.path / 'train' / f'ckpt-{final[1]}'
            folder.check_loss(values.stored(path), float(final[2]), final[0])
            best = folder.best()
            require(best and best['value'] < float(final[2]) + 1e-4, 'best/ is worse than the last evaluation', best,
                    final[0])
        if fault is None:
            require(not folder.left_behind(), 'files are left behind', folder.left_behind())

    def resume(self, which, max_steps=None, strike=None):
        """Train on with the same configuration, or up to another step."""
        config = self._folders[which].config or configs.Config()
        self.train(which, config._replace(max_steps=max_steps or config.max_steps), strike)

    def change(self, which, field, value, strike=None):
        """Train on with one thing changed."""
        config = self._folders[which].config or configs.Config()
        self.train(which, config._replace(**{field: value}), strike)

    def _look_at_paused(self, which):
        """A second training is refused while a run is paused; an evaluation is not."""
        folder = self._folders[which]
        result = self._command('train', folder)
        require(result.code == 1 and 'is in use by another process' in result.output,
                'two runs train in one folder', result.code, result.output[-500:])

    def _command(self, mode, folder, *words):
        config = folder.config or configs.Config()
        command = [mode, f'--logdir={folder.path.name}', *config.words(), *words]
        result = commands.run(command, self._root, self._notes)
        require('Traceback' not in result.output, 'a traceback', result.output[-1500:])
        return result

    def _reading_command(self, mode, folder, writes, *words):
        """Run a command that changes nothing but what it writes."""
        before = [each.contents(*writes) for each in self._folders]
        result = self._command(mode, folder, *words)
        require([each.contents(*writes) for each in self._folders] == before, f'{mode} has changed a run')
        return result

    def evaluate(self, which, what):
        """Evaluate the newest checkpoint, the oldest or the best one."""
        folder = self._folders[which]
        found = folder.complete()
        if what == 'best' and folder.best():
            path = folder.path / 'best' / f'ckpt-{folder.best()["step"]}'
        else:
            path = found[-1] if what == 'oldest' and found else None
        words = [f'--checkpoint={path}'] if path else []
        result = self._reading_command('eval', folder, ['eval_test'], *words)
        if not found and not path:
            return require(result.code == 1 and 'Error: There is no' in result.output,
                           'an evaluation of nothing', result.code, result.output[-500:])
        require(result.code == 0, f'exit code {result.code} of an evaluation', result.output[-1500:])
        told = re.search(r'^step (\d+), Test: loss ([\d.]+)$', result.output, re.MULTILINE)
        require(told, 'an evaluation prints nothing', result.output[-500:])
        folder.check_loss(values.stored(path or found[0]), float(told[2]), told[0])

    def follow(self, which):
        """Follow a run to its last step."""
        folder = self._folders[which]
        config = folder.config or configs.Config()
        if not folder.path.exists():
            return self.evaluate(which, 'newest')
        notes = self._notes.with_name('notes of follower')
        notes.mkdir(exist_ok=True)
        follower = commands.started(
            ['eval', '--follow', f'--logdir={folder.path.name}', *config.words()], self._root, notes)
        try:
            self.train(which, config)
            end = time.monotonic() + _SECONDS_TO_FOLLOW
            while follower.poll() is None and time.monotonic() < end:
                time.sleep(0.1)
            require(follower.poll() == 0, '--follow does not end after the last step', follower.poll())
        finally:
            follower.kill()
            result = commands.ended(follower, notes)
        last = rf'^step {folder.newest_step()}, Test: loss '
        require(re.search(last, result.output, re.MULTILINE), '--follow has left out the last step', result.output)
        folder.check_losses(result.output)

    def export(self, which):
        """Export the newest checkpoint."""
        folder = self._folders[which]
        found = folder.complete()
        result = self._reading_command('export', folder, ['export'])
        if not found:
            return require(result.code == 1 and 'Error: There is no' in result.output, 'an export of nothing',
                           result.code, result.output[-500:])
        require(result.code == 0, f'exit code {result.code} of an export', result.output[-1500:])
        stored, arrays = values.stored(found[0]), values.exported(folder.path)
        layers = [name for name in stored if name.startswith('model/')]
        for layer in {name.split('/')[1] for name in layers}:
            for name in values.evaluated(stored, layer):
                require(any(stored[name].tobytes() == array.tobytes() for array in arrays),
                        'an exported weight is not that of the checkpoint', name)

    def report(self, which):
        """Write the page of a run."""
        folder = self._folders[which]
        exists = folder.path.exists()
        result = self._reading_command('report', folder, ['report.html'])
        require(result.code == (0 if exists else 1), f'exit code {result.code} of a report', result.output[-1500:])
        require((folder.path / 'report.html').exists() == exists, 'no page was written', result.output[-500:])

    def damage(self, which):
        """Cut the newest checkpoint in half, where there is an older one."""
        folder = self._folders[which]
        found = folder.complete()
        if len(found) > 1:
            data, = pathlib.Path(f'{found[0]}.index').parent.glob(f'{pathlib.Path(found[0]).name}.data-*')
            data.write_bytes(data.read_bytes()[:data.stat().st_size // 2])
            folder.damaged.add(pathlib.Path(found[0]).name)

    def lose_list(self, which):
        """Lose the list of checkpoints, try to train, and give it back."""
        folder = self._folders[which]
        listing = folder.path / 'train' / 'checkpoint'
        if not folder.complete():
            return
        text = listing.read_text()
        listing.unlink()
        result = self._command('train', folder)
        require(result.code == 1 and 'is missing or damaged' in result.output, 'a lost list was not noticed',
                result.code, result.output[-500:])
        listing.write_text(text)

    def begin_again(self, which):
        """Delete all that training has written, but not what is in best/."""
        shutil.rmtree(self._folders[which].path / 'train', ignore_errors=True)
        self._folders[which].forget()

    def end(self):
        """Let runs that have not reached their last step go on to it, undisturbed."""
        for which, folder in enumerate(self._folders):
            if folder.config and folder.newest_step() < folder.config.max_steps:
                self.resume(which)


def _allowed_codes(fault, is_outside):
    """Return the documented exit codes."""
    # After Ctrl-C the command ends by SIGINT, so that a loop of a shell ends too.
    own = {'TERM': {-15}, 'HUP': {-1}, 'USR1': {-10}}.get(fault, set()) if is_outside else set()  # while Python starts
    return own | {'KILL': {-9}, 'full disk': {0, 1}, 'INT': {0, -2}, 'INT twice': {0, -2}, 'TERM': {0, 75},
                  'HUP': {0, 75}, 'USR1': {0, 75}, 'TERM twice': {0, 75}}.get(fault, {0})


EVENTS = tuple(name for name, value in vars(Life).items() if not name.startswith('_') and callable(value)
               and name not in ('do', 'end'))
assert set(strikes.FAULTS) >= _CONTINUED
