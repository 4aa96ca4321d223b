"""Seconds of a training step: LingPipe beside torch.distributed.pipelining and torchgpipe, on the same decoder.

    python -m benchmarks.peers.step_time --torch_python=/path/to/another/venv/bin/python

PyTorch is optional, and may be installed in an environment of its own. Every configuration has separate processes,
bound to their cores. The configurations take turns, one measured step each.
"""

import contextlib
import math
import os
import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

from absl import app, flags

from benchmarks.peers import lingpipe_step, torch_process
from benchmarks.support import common

FLAGS = flags.FLAGS
_TORCH_PYTHON = flags.DEFINE_string('torch_python', sys.executable, 'Python interpreter that has torch and torchgpipe.')

_TWO_STAGES_A_RANK = 'ScheduleZBVZeroBubble'
_PIPELINING_SCHEDULES = ['ScheduleGPipe', 'Schedule1F1B', 'ScheduleInterleavedZeroBubble', _TWO_STAGES_A_RANK]
_CHECKPOINTS = {'never': 'none', 'except_last': 'stage', 'always': 'stage'}
_NOTES = (
    "Seconds: median of a step. 'throughput': over that of LingPipe's fastest row of the same 'recompute'. Every "
    'row starts from the same weights, cuts the layers at the same places (ZB-V: two stages per rank), and has one '
    'thread a core. Each rank of torch.distributed.pipelining is a process on one core (gloo). torchgpipe gives all CPU '
    'devices one worker thread, so its partitions do not overlap; it is made for GPUs.')


class Configuration(NamedTuple):
    """A row of the table.

    Attributes:
        title: what is measured.
        recompute: 'none' or 'stage'.
        num_cores: processor cores that it is held to.
        is_ours: whether it is LingPipe's pipeline.
        start: function without arguments that gives a context manager with `next()`: a dictionary with 'loss', then
            seconds.
    """

    title: str
    recompute: str
    num_cores: int
    is_ours: bool
    start: Callable


def _own_configurations(num_micro_batches):
    num_partitions = FLAGS.num_partitions
    plain = [Configuration(
        'plain TensorFlow', 'none', num_cores, False,
        lambda num_cores=num_cores: common.Process(lingpipe_step.plain_steps, num_micro_batches, num_cores=num_cores))
        for num_cores in (1, num_partitions)]
    pipelines = [Configuration(
        f'LingPipe, {schedule}', recompute, num_partitions, True,
        lambda arguments=(schedule, recompute): common.Process(
            lingpipe_step.pipeline_steps, *arguments, num_cores=num_partitions))
        for schedule in FLAGS.schedules for recompute in FLAGS.recompute]
    return plain + pipelines


def _peer_configurations(found, problem, folder):
    """Return configurations of what is installed.

    Args:
        found: dictionary of versions.
        problem: dictionary that `lingpipe_step.write_problem` gives.
        folder: where it wrote.
    """
    cores = sorted(os.sched_getaffinity(0))[:FLAGS.num_partitions]
    rows = []
    if found['torch']:
        rows += _plain_rows(cores, problem) + _pipelining_rows(cores, problem, folder)
    if found['torch'] and found['torchgpipe']:
        rows += _torchgpipe_rows(cores, problem)
    return [Configuration(title, recompute, num_cores, False, lambda requests=requests: torch_process.Peer(
        _TORCH_PYTHON.value, [{**request, 'folder': folder} for request in requests], problem))
        for title, recompute, num_cores, requests in rows]


def _plain_rows(cores, problem):
    return [('plain PyTorch', 'none', len(held), torch_process.plain_requests(held, problem['num_micro_batches']))
            for held in (cores[:1], cores)]


def _torchgpipe_rows(cores, problem):
    ends = problem['ends'][str(len(cores))]
    return [(f"torchgpipe, checkpoint='{checkpoint}'", recompute, len(cores),
             torch_process.torchgpipe_requests(cores, ends, checkpoint))
             for checkpoint, recompute in _CHECKPOINTS.items()]


def _pipelining_rows(cores, problem, folder):
    """Return a row for each schedule and kind of recomputation.

    LingPipe does not recompute the last stage with 1F1B, as its B follows its F at once; a user of PyTorch may leave it
    out too.
    """
    rows = []
    for schedule in _PIPELINING_SCHEDULES:
        ends = problem['ends'][str(len(cores) * (2 if schedule == _TWO_STAGES_A_RANK else 1))]
        every = list(range(len(ends)))
        choices = [('', 'none', []), ('', 'stage', every)]
        if schedule == 'Schedule1F1B':
            choices.append((', last stage retained', 'stage', every[:-1]))
        rows += [(f'torch pipelining, {schedule}{retained}', recompute, len(cores), torch_process.pipelining_requests(
            cores, ends, schedule, recomputed, f'{folder}/{schedule}_{len(recomputed)}'))
            for retained, recompute, recomputed in choices]
    return rows


def _run(configurations):
    """Measure configurations in turns.

    Returns:
        List of (configuration, loss, seconds), and list of sentences about what could not be measured.
    """
    started, failures = [], []
    with contextlib.ExitStack() as stack:
        for configuration in configurations:
            process = stack.enter_context(configuration.start())
            try:
                first = process.next()
            except common.ProcessDied as error:
                failures.append(f'Not measured: {configuration.title}, recompute {configuration.recompute!r} '
                                f'({error}).')
                continue
            started.append((configuration, process, first['loss']))
        medians = common.medians_in_turns([process for _, process, _ in started], FLAGS.num_steps)
    return [(configuration, loss, seconds) for (configuration, _, loss), seconds in zip(started, medians)], failures


def _rows(measured):
    """Return the table's rows of one kind of recomputation."""
    best = min((seconds for configuration, _, seconds in measured if configuration.is_ours), default=math.nan)
    return [[configuration.title, configuration.recompute, configuration.num_cores, f'{seconds:.4f}',
             f'{best / seconds:.2f}', f'{loss:.6f}'] for configuration, loss, seconds in measured]


def _versions(found):
    return f'PyTorch {found["torch"]}, torchgpipe {found["torchgpipe"] or "not installed"}' if found['torch'] else ''


def main(unused_argv):
    found = torch_process.versions(_TORCH_PYTHON.value)
    with tempfile.TemporaryDirectory() as folder:
        problem = common.measured(lingpipe_step.write_problem, folder)
        configurations = (_own_configurations(problem['num_micro_batches'])
                          + _peer_configurations(found, problem, folder))
        # What is compared takes turns; all at once would need twice the memory.
        results = [_run([configuration for configuration in configurations if configuration.recompute == recompute])
                   for recompute in FLAGS.recompute]
    rows = [row for measured, _ in results for row in _rows(measured)]
    failures = [sentence for _, sentences in results for sentence in sentences]
    table = common.Table(['configuration', 'recompute', 'cores', 'seconds', 'throughput', 'loss'], rows)
    missing = torch_process.what_to_install(_TORCH_PYTHON.value, found)
    common.report(table, *filter(None, [*failures, missing, _NOTES]), other_versions=_versions(found))


if __name__ == '__main__':
    app.run(main)
