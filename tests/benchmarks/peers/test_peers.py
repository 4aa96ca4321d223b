"""The comparison with PyTorch's pipelines, with an interpreter that only pretends to have PyTorch: its table, and its
sentences."""

import functools
import importlib
import json
import stat
import sys

import pytest

_TINY = ['--num_steps=3', '--num_blocks=2', '--width=8', '--sequence_length=4', '--batch_size=4',
         '--num_micro_batches=2',
         '--schedules=1f1b']


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
    """Path of an interpreter which claims to have both packages."""
    path = tmp_path / 'python'
    path.write_text(_FAKE.format(python=sys.executable, versions='{"torch": "9.8", "torchgpipe": "7.6"}'))
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


@pytest.fixture
def torch_process(load_benchmark, monkeypatch):
    """Return the module that talks to the peers' processes."""
    return load_benchmark('peers.torch_process')


@pytest.fixture
def compare(torch_process, run_benchmark):
    """Return a function that runs the whole comparison; what it prints is its value."""
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


def test_peers_stand_beside_the_best_row_of_the_same_recompute_mode(one_pipeline_is_measured, compare, table, fake_python):
    text = compare(f'--torch_python={fake_python}')
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


@pytest.mark.parametrize('difference', [{'num_parameters': 8}, {'loss': 1.6}])
def test_another_model_is_no_peer(torch_process, fake_python, tmp_path, difference):
    problem = {'num_parameters': 7, 'loss': 1.5}
    (tmp_path / 'problem.json').write_text(json.dumps({**problem, **difference}))
    request = {**torch_process.plain_requests([0], 8)[0], 'folder': str(tmp_path)}
    with torch_process.Peer(fake_python, [request], problem) as peer:
        with pytest.raises(ValueError, match='Only the same model can be compared'):
            peer.next()


def test_two_stages_a_rank_lie_as_a_v(torch_process):
    requests = torch_process.pipelining_requests([0, 1], [3, 5, 7, 10], 'ScheduleZBVZeroBubble', [], 'rendezvous')
    assert [request['own'] for request in requests] == [[0, 3], [1, 2]]
