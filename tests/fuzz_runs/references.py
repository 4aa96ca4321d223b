"""Undisturbed runs: what a run must have come to at each step, by what it began with."""

import hashlib
import pathlib
import shutil
import tempfile

from tests.fuzz_runs import commands, configs, folders, values


class References:
    """Undisturbed runs, each made once."""

    def __init__(self, folder):
        self._folder, self._known = pathlib.Path(folder), {}

    def of(self, config, origin=None):
        """Return the `Reference` of a configuration that begins at a checkpoint."""
        key = config.numbers, origin and _digest(values.stored(origin))
        if key not in self._known:
            folder = tempfile.mkdtemp(dir=self._folder)
            self._known[key] = Reference(config, origin, pathlib.Path(folder))
        return self._known[key]


class Reference:
    """An undisturbed run with a checkpoint of each step."""

    def __init__(self, config, origin, folder):
        self.config, self._folder, self._has_run, self._known = config, folder, False, {}
        if origin:
            path = pathlib.Path(origin)
            (folder / 'run' / 'train').mkdir(parents=True)
            for file in path.parent.iterdir():
                if file.name.startswith(f'{path.name}.'):
                    shutil.copy(file, folder / 'run' / 'train')
            (folder / 'run' / 'train' / 'checkpoint').write_text(f'model_checkpoint_path: "{path.name}"\n')

    def values(self, step):
        """Return what a checkpoint of a step must have; see `values.stored`."""
        if not self._has_run:
            self._run()
        if step not in self._known:
            self._known[step] = values.stored(self._folder / f'run/train/ckpt-{step}')
        return self._known[step]

    def _run(self):
        undisturbed = self.config._replace(
            max_steps=configs.MOST_STEPS, steps_per_loop=1, save_interval_seconds=0.0, save_async=False,
            save_max_to_keep=1000, interval_steps=0)
        notes = self._folder / 'notes'
        notes.mkdir()
        result = commands.run(['train', '--logdir=run', *undisturbed.words()], self._folder, notes)
        folders.require(result.code == 0, 'an undisturbed run fails', self.config, result.output[-1500:])
        self._has_run = True


def _digest(found):
    digest = hashlib.sha256()
    for name, array in sorted(found.items()):
        digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()
