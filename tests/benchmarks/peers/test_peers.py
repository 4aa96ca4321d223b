"""The comparison with PyTorch's pipelines, with an interpreter that only pretends to have PyTorch: its table, and its
sentences."""

import functools
import importlib
import json
import pathlib
import stat
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[3]
_TINY = ['--num_steps=3', '--num_blocks=2', '--width=8', '--sequence_length=4', '--batch_size=4',
         '--num_micro_batches=2',
         '--schedules=1f1b']
_NOTHING = '{"torch": null, "torchgpipe": null}'
_TORCH = '{"torch": "9.8", "torchgpipe": null}'
_BOTH = '{"torch": "9.8", "torchgpipe": "7.6"}'

# It answers each line of input as torch_step.py does. Ranks say 2 and 3 seconds; of two ranks the last knows the loss.
_FAKE = '''#!{python}
import itertools, json, sys
if sys.argv[2].endswith('versions'):
    print('{versions}')
    sys.exit()
request = json.loads(sys.argv[3])
if request.get('schedule') == 'ScheduleGPipe':
    sys.exit('RuntimeError: no such schedule')
with open(request['folder'] + '/problem.json') as file:
    problem = json.load(file)
rank = request.get('rank', 0)
loss = problem['loss'] if rank == request.get('num_ranks', 1) - 1 else None
first = dict(num_parameters=problem['num_parameters'], loss=loss)
for line, answer in zip(sys.stdin, itertools.chain([first], itertools.repeat(2.0 + rank))):
    print(json.dumps(answer), flush=True)
'''


@pytest.fixture
def fake_python(tmp_path):
    """Returns a function that writes an interpreter which claims to have these versions, and gives its path."""

    def write(versions):
        path = tmp_path / 'python'
        path.write_text(_FAKE.format(python=sys.executable, versions=versions))
        path.chmod(path.stat().st_mode | stat.S_IEXEC)
        return str(path)

    return write


@pytest.fixture
def torch_process(load_benchmark, monkeypatch):
    """Returns the module that talks to the peers' processes."""
    return load_benchmark('peers.torch_process')


@pytest.fixture
def compare(torch_process, run_benchmark):
    """Returns a function that runs the whole comparison; what it prints is its value."""
    return functools.partial(run_benchmark, 'peers.step_time', *_TINY)


def _mocked_steps(*unused):
    yield {'loss': 1.5, 'num_micro_batches': 2}
    while True:
        yield 0.5


@pytest.fixture
def one_pipeline_is_measured(torch_process, monkeypatch):
    """`test_benchmarks.py` measures the rows of `step_time.py`, which these are."""
    lingpipe_step = importlib.import_module('benchmarks.peers.lingpipe_step')
    measured = lingpipe_step.pipeline_steps
    monkeypatch.setattr(lingpipe_step, 'plain_steps', _mocked_steps)
    monkeypatch.setattr(lingpipe_step, 'pipeline_steps', lambda schedule, recompute: (
        measured if recompute == 'none' else _mocked_steps)(schedule, recompute))


@pytest.fixture
def own_steps_are_mocked(torch_process, monkeypatch):
    """LingPipe's side is not measured."""
    lingpipe_step = importlib.import_module('benchmarks.peers.lingpipe_step')
    for name in ('write_problem', 'plain_steps', 'pipeline_steps'):
        monkeypatch.setattr(lingpipe_step, name, _mocked_steps)


def test_without_pytorch_lingpipe_runs_alone_with_an_install_hint(
        own_steps_are_mocked, compare, table, fake_python):
    python = fake_python(_NOTHING)
    text = compare(f'--torch_python={python}', '--recompute=none')
    assert [(row['configuration'], row['recompute']) for row in table(text)] == [
        ('plain TensorFlow', 'none'), ('plain TensorFlow', 'none'), ('LingPipe, 1f1b', 'none')]
    assert f'`{python} -m pip install torch torchgpipe`' in text


def test_peers_stand_beside_the_best_row_of_the_same_recompute_mode(one_pipeline_is_measured, compare, table, fake_python):
    text = compare(f'--torch_python={fake_python(_BOTH)}')
    rows = table(text)
    own = {row['recompute']: float(row['seconds']) for row in rows if row['configuration'].startswith('LingPipe')}
    peers = [row for row in rows if row['configuration'].startswith(('torch', 'plain PyTorch'))]
    assert len(peers) == 2 + 7 + 3
    assert len({row['loss'] for row in peers}) == 1
    for row in peers:
        # A pipeline of two ranks takes as long as the slower one.
        assert float(row['seconds']) == (3.0 if row['configuration'].startswith('torch pipelining') else 2.0)
        assert float(row['throughput']) == pytest.approx(own[row['recompute']] / float(row['seconds']), abs=0.006)
    assert [row['throughput'] for row in rows if row['configuration'].startswith('LingPipe')] == ['1.00', '1.00']
    assert "Not measured: torch pipelining, ScheduleGPipe, recompute 'stage' (exit status 1: RuntimeError: no such schedule)."\
        in text
    assert 'PyTorch 9.8, torchgpipe 7.6.' in text


def test_torchgpipe_alone_may_be_missing(torch_process, fake_python):
    python = fake_python(_TORCH)
    assert torch_process.what_to_install(python, torch_process.versions(python)) == (
        f'torchgpipe is missing, so it was not measured: `{python} -m pip install torchgpipe` (0.0.7).')


def test_nothing_is_said_where_nothing_is_missing(torch_process, fake_python):
    python = fake_python(_BOTH)
    assert torch_process.what_to_install(python, torch_process.versions(python)) is None


def test_an_interpreter_that_does_not_exist_is_named(torch_process):
    with pytest.raises(ValueError, match="--torch_python='/no/such/python' does not run"):
        torch_process.versions('/no/such/python')


def test_a_package_that_cannot_be_imported_has_no_version(torch_process):
    versions = importlib.import_module('benchmarks.peers.versions')
    assert versions.version('no_such_package') is None
    assert versions.version('pytest') == pytest.__version__


def test_ranks_take_a_step_together(torch_process, fake_python, tmp_path):
    requests = torch_process.pipelining_requests([0, 1], [5, 10], 'Schedule1F1B', [], f'{tmp_path}/rendezvous')
    problem = {'num_parameters': 7, 'loss': 1.5}
    (tmp_path / 'problem.json').write_text(json.dumps(problem))
    requests = [{**request, 'folder': str(tmp_path)} for request in requests]
    with torch_process.Peer(fake_python(_BOTH), requests, problem) as peer:
        assert [peer.next() for _ in range(3)] == [problem, 3.0, 3.0]


@pytest.mark.parametrize('difference', [{'num_parameters': 8}, {'loss': 1.6}])
def test_another_model_is_no_peer(torch_process, fake_python, tmp_path, difference):
    problem = {'num_parameters': 7, 'loss': 1.5}
    (tmp_path / 'problem.json').write_text(json.dumps({**problem, **difference}))
    request = {**torch_process.plain_requests([0], 8)[0], 'folder': str(tmp_path)}
    with torch_process.Peer(fake_python(_BOTH), [request], problem) as peer:
        with pytest.raises(ValueError, match='Only the same model can be compared'):
            peer.next()


def test_two_stages_a_rank_lie_as_a_v(torch_process):
    requests = torch_process.pipelining_requests([0, 1], [3, 5, 7, 10], 'ScheduleZBVZeroBubble', [], 'rendezvous')
    assert [request['own'] for request in requests] == [[0, 3], [1, 2]]
