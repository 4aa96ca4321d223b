"""Trackers, against libraries that keep what they are given, with the interfaces of MLflow and W&B."""

import pathlib
import re
import signal
import sys
import types

import pytest

from lingpipe.training import errors, trackers
from tests import curves


class Mlflow:
    """The functions of the package mlflow that are called, with its limits."""

    def __init__(self):
        self.runs, self.active, self.calls = {}, None, []

    def start_run(self, run_id=None, run_name=None):
        assert self.active is None
        self.active = run_id or f'run{len(self.runs)}'
        self.runs.setdefault(self.active, {'name': run_name, 'params': {}, 'metrics': []})
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=self.active))

    def log_params(self, params):
        assert len(params) <= 100 and all(len(value) <= 500 for value in params.values())
        assert all(re.fullmatch(r'[\w\-. :/]+', name) for name in params)
        known = self.runs[self.active]['params']
        assert not known.keys() & params.keys()
        known.update(params)

    def log_metrics(self, metrics, step):
        self.runs[self.active]['metrics'].append((step, metrics))

    def end_run(self, status):
        self.runs[self.active]['status'] = status
        self.active = None


class Wandb:
    """The functions of the package wandb that are called."""

    def __init__(self):
        self.runs = {}

    def init(self, id, resume, name, config):
        assert resume == 'allow'
        return self.runs.setdefault(id, WandbRun(id, name, config))


class WandbRun:
    def __init__(self, id, name, config):
        self.id, self.name, self.config = id, name, Config(config)
        self.points, self.num_finished = [], 0

    def log(self, values, step):
        self.points.append((step, values))

    def finish(self, exit_code=0):
        self.num_finished, self.exit_code = self.num_finished + 1, exit_code


class Config(dict):
    def update(self, config, allow_val_change):
        assert allow_val_change
        super().update(config)


@pytest.fixture
def mlflow(monkeypatch):
    fake = Mlflow()
    monkeypatch.setitem(sys.modules, 'mlflow', fake)
    return fake


@pytest.fixture
def wandb(monkeypatch):
    fake = Wandb()
    monkeypatch.setitem(sys.modules, 'wandb', fake)
    return fake


def train(tiny, folder, *names, **overrides):
    return tiny.train(folder, train__trackers=list(names), eval__interval_steps=4, **overrides)


def test_mlflow_gets_params_and_the_points_of_tensorboard(tiny, mlflow, tmp_path):
    run = train(tiny, tmp_path, 'mlflow')
    tracked, = mlflow.runs.values()
    assert tracked['name'] == str(tmp_path) and mlflow.active is None
    assert tracked['params']['train.max_steps'] == '12' and tracked['params']['task.body.num_partitions'] == '2'
    losses = {step: values['train/loss'] for step, values in tracked['metrics'] if 'train/loss' in values}
    assert losses == pytest.approx(dict(curves.curve(tmp_path / 'train', 'loss')))
    tests = [(step, values) for step, values in tracked['metrics'] if 'test/loss' in values]
    assert [step for step, _ in tests] == [4, 8, 12]
    assert tests[-1][1] == {f'test/{name}': value for name, value in run.results['Test'].items()}


def test_a_resumed_run_goes_on_with_its_tracked_run(tiny, mlflow, wandb, tmp_path):
    for max_steps in (8, 12):
        train(tiny, tmp_path, 'mlflow', 'wandb', train__max_steps=max_steps)
    tracked, = mlflow.runs.values()
    assert sorted({step for step, _ in tracked['metrics']}) == [4, 8, 12]
    assert tracked['params']['train.max_steps'] == '8'  # which MLflow lets nobody change
    run, = wandb.runs.values()
    assert sorted({step for step, _ in run.points}) == [4, 8, 12]
    assert run.config['train.max_steps'] == 12 and run.num_finished == 2
    assert (run.exit_code, tracked['status']) == (0, 'FINISHED')
    assert (tmp_path / 'control/wandb_run.txt').read_text() == f'{run.id}\n'


def test_a_run_that_fails_is_ended_as_failed(tiny, mlflow, wandb, tmp_path):
    with pytest.raises(errors.TrainingError, match='not finite'):
        tiny.train(tmp_path, 'PoisonedDigits', train__trackers=['mlflow', 'wandb'])
    (run,), (tracked,) = wandb.runs.values(), mlflow.runs.values()
    assert (run.num_finished, run.exit_code, tracked['status']) == (1, 1, 'FAILED')


def test_a_run_that_is_stopped_is_ended_as_killed(tiny, mlflow, wandb, tmp_path, signal_at):
    signal_at(8, signal.SIGTERM)
    train(tiny, tmp_path, 'mlflow', 'wandb')
    (run,), (tracked,) = wandb.runs.values(), mlflow.runs.values()
    assert (run.exit_code, tracked['status']) == (255, 'KILLED')


def test_a_tracker_that_fails_is_left_out_and_training_ends(tiny, mlflow, wandb, tmp_path, caplog, finished):
    def unreachable(metrics, step):
        raise ConnectionError('no answer')

    mlflow.log_metrics = unreachable
    assert train(tiny, tmp_path, 'mlflow', 'wandb').results == finished.results
    assert caplog.text.count("train.trackers: 'mlflow' failed (ConnectionError: no answer). Training continues") == 1
    run, = wandb.runs.values()
    assert {step for step, _ in run.points} == {4, 8, 12}


@pytest.mark.parametrize(('names', 'said'), [
    ([['x']], "['x'], which is not a tracker"), (['mlfow'], "'mlfow', which is not a tracker; did you mean mlflow?"), ('mlflow', 'it must be a list of names')])
def test_names_that_are_wrong_are_refused(names, said):
    with pytest.raises(ValueError) as caught:
        trackers.validate(names)
    assert said in str(caught.value)


def test_the_program_of_the_page_tracks(tiny, tmp_path, capsys, monkeypatch):
    page = (pathlib.Path(__file__).parents[2] / 'docs/report.md').read_text('utf-8')
    monkeypatch.setattr(trackers, 'TRACKERS', dict(trackers.TRACKERS))
    exec(re.search(r'^```python\n(.*?)^```', page, re.DOTALL | re.MULTILINE)[1], {})
    train(tiny, tmp_path, 'printed')
    printed = capsys.readouterr().out
    assert f'{tmp_path} 12\n' in printed and printed.count("{'train/loss'") == 3 and '\nend\n' in printed
