"""Random lives of two runs hold what is promised; benchmarks/equality/fuzz_runs.py looks at many more."""

import json
import pathlib
import shutil

import pytest

from tests.fuzz_runs import commands, configs, folders, life, machine, references

_NUMBERS = {'num_partitions': (1, 2)}
_FAULTS = ('INT', 'TERM', 'KILL', 'STOP', 'full disk')


def test_random_lives_of_two_runs_hold():
    sequences = []
    machine.run(10, 1, 0, sequences.append, _FAULTS, _NUMBERS)
    broken = [f'{sequence.broken}\n{machine.source_of(sequence)}' for sequence in sequences if sequence.broken]
    assert len(sequences) == 10
    assert not broken, '\n\n'.join(broken)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Two runs, the first of which has checkpoints of steps 2, 4 and 6, and a best one."""
    lived = life.Life(
        tmp_path_factory.mktemp('life'), ('one', 'other'), references.References(tmp_path_factory.mktemp('known')))
    lived.do('train', 0, configs.Config(interval_steps=2))
    return lived


@pytest.fixture
def folder(trained):
    """The first of them, put back after the test."""
    found = trained._folders[0]
    kept = pathlib.Path(shutil.copytree(found.path, f'{found.path}.kept'))
    yield found
    shutil.rmtree(found.path)
    kept.rename(found.path)


def exchange_weights(folder):
    for kind in ('index', 'data-00000-of-00001'):
        shutil.copy(folder.path / f'train/ckpt-2.{kind}', folder.path / f'train/ckpt-6.{kind}')


def cut_in_half(folder):
    (folder.path / 'train/ckpt-6.data-00000-of-00001').write_bytes(b'short')


def claim_another_value(folder):
    file = folder.path / 'best/best.json'
    file.write_text(json.dumps({**json.loads(file.read_text()), 'value': 0.5}))


@pytest.mark.parametrize('tamper, words', [
    (exchange_weights, 'differs from that of an undisturbed run'), (cut_in_half, 'cannot be read'),
    (claim_another_value, 'does not hold the value')])
def test_what_does_not_hold_is_found(folder, tamper, words):
    folder.check()
    tamper(folder)
    with pytest.raises(folders.Broken, match=words):
        folder.check()


def test_a_lost_checkpoint_is_found(trained, folder):
    before = folder.complete()
    list_file = folder.path / 'train/checkpoint'
    list_file.write_text('\n'.join(line for line in list_file.read_text().splitlines() if 'ckpt-2' not in line))
    with pytest.raises(folders.Broken, match='ckpt-2'):
        trained._check_kept(before, folder, commands.Result(0, '', False, None))


@pytest.mark.parametrize('fault, is_outside, codes', [
    ('none', False, {0}), ('TERM', False, {0, 75}), ('TERM', True, {0, 75, -15}), ('KILL', False, {-9}),
    ('pipe', True, {0}),
    ('full disk', False, {0, 1})])
def test_exit_codes_are_the_documented_ones(fault, is_outside, codes):
    assert life._allowed_codes(fault, is_outside) == codes


def test_a_sequence_shrinks_to_what_breaks_it(monkeypatch):
    def replayed(names, events):
        broken = [number for number, event in enumerate(events) if event == ('report', 1) and ('train', 0) in events]
        return machine.Sequence(names, events, 'exit code 1: later' if broken else '')

    monkeypatch.setattr(machine, 'replayed', replayed)
    events = [('train', 0), ('resume', 0, 8), ('export', 1), ('report', 1)]
    small = machine.shrunken(machine.Sequence(('a', 'b'), events, 'exit code 1: first'), lambda text: text[:8], 60)
    assert small.events == [('train', 0), ('report', 1)]
    compile(machine.source_of(small), 'small', 'exec')
