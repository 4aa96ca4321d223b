"""A KerasHub model whose stages are in another process, compared with one process."""

import json
import pathlib

from lingpipe.training import trainer
from tests import forked_programs, needs
from tests.programs import tiny_hub

pytestmark = needs.keras_hub
ROOT = pathlib.Path(__file__).parents[2]


def test_stages_of_a_hub_model_train_in_another_process(tmp_path, monkeypatch, stored, assert_close):
    (tmp_path / tiny_hub.FILE).write_text('\n'.join(json.dumps({'text': f'{number} is a number.'}) for number in range(9)))
    program = forked_programs.ForkedProgram(
        ['-m', 'lingpipe', 'local_cluster', '--workers=1', '--', ROOT / 'run.py', '--model=tiny_hub',
         '--logdir=cluster', '--cluster=pipeline'],
        {'PYTHONPATH': f'{ROOT}:{ROOT / "tests/programs"}', 'OMP_NUM_THREADS': '1'}, tmp_path, has_one_output=True)
    printed, _ = program.communicate(timeout=240)
    assert program.returncode == 0, printed
    assert all(f'worker:0/CPU:{stage}' in printed for stage in range(2)) and 'Final Test after 3 steps: loss ' in printed
    monkeypatch.chdir(tmp_path)
    experiment = tiny_hub.TinyGPT2()
    params = experiment.Model()
    params.Define('input', experiment.Train(), 'The input of Train.')
    trainer.Trainer(params, {}, 'alone').run()
    assert_close(stored(tmp_path / 'cluster/train/ckpt-3'), stored(tmp_path / 'alone/train/ckpt-3'))
