"""Starts sixteen workers on this machine, kills one, and counts what they cost: as a pipeline, and as replicas.

    python -m benchmarks.faults.load

Each worker is a process, with a supervisor that would restart it. Memory counts pages that
processes share in parts (PSS), and includes the supervisor. Processor seconds of the start are those until a worker
serves, or, with multi_worker, until the first step.
"""

import os
import pathlib
import re
import signal
import statistics
import sys
import tempfile
import time

from absl import app, flags

from benchmarks.faults import struck_training
from benchmarks.support import common

_CLUSTERS = flags.DEFINE_list(
    'clusters', [struck_training.PIPELINE, struck_training.MULTI_WORKER], 'Values of --cluster.')
_NUM_WORKERS = flags.DEFINE_enum('workers', '16', ['2', '16'], 'Number of worker processes.')
_STEP_TIMEOUT_SECONDS = 120
_SECONDS_TO_START = 600
_STRUCK = 'worker 1'
_SERVES = r'\[(worker \d+)\] .* serves at '
_TICKS = os.sysconf('SC_CLK_TCK')
_MIB = 2**20


def _row(cluster):
    with tempfile.TemporaryDirectory() as folder:
        training = struck_training.StruckTraining(
            cluster, f'{folder}/run', step_timeout_seconds=_STEP_TIMEOUT_SECONDS, num_workers=int(_NUM_WORKERS.value))
        begin = time.monotonic()
        try:
            training.start()
            processor = _seconds_of_start(training)
            _say(f'{cluster}: started after {time.monotonic() - begin:.0f} s, {max(processor):.1f} s of the processor')
            first = training.lines[_first_step(training)][0] - begin
            memory = [_memory(training, task) for task in _workers(training)]
            _say(f'{cluster}: first step after {first:.0f} s, {max(memory) / _MIB:.0f} MiB')
            again = _seconds_to_resume(training)
            _say(f'{cluster}: {again:.0f} s after a worker was killed there are steps again')
        finally:
            code = training.stop()
        return [cluster, len(memory), f'{max(processor):.1f}', f'{first:.0f}', f'{again:.0f}',
                f'{statistics.median(memory) / _MIB:.0f}', f'{max(memory) / _MIB:.0f}', code,
                len(struck_training.left_over())]


def _say(sentence):
    print(sentence, file=sys.stderr, flush=True)


def _workers(training):
    return [task for task in training.tasks if task.startswith('worker')]


def _first_step(training, first=0):
    number = training.wait_for(rf'^\[{training.chief}\] (First step|step )', first, _SECONDS_TO_START)
    if number is None:
        raise RuntimeError('\n'.join(['There was no step.', *[line for _, line in training.lines[-30:]]]))
    return number


def _seconds_of_start(training):
    """Returns the processor seconds of all workers' processes, each when it serves."""
    if training.cluster == struck_training.MULTI_WORKER:
        _first_step(training)
        return [_processor_seconds(training.child(task)) for task in _workers(training)]
    seconds, number = {}, 0
    while len(seconds) < len(_workers(training)):
        number = training.wait_for(_SERVES, number, _SECONDS_TO_START)
        task = re.match(_SERVES, training.lines[number][1])[1]
        seconds[task] = _processor_seconds(training.child(task))
        number += 1
    return list(seconds.values())


def _seconds_to_resume(training):
    while not training.checkpoints():  # without one there is nothing to resume from
        time.sleep(.1)
    first = len(training.lines)
    begin = time.monotonic()
    os.kill(training.child(_STRUCK), signal.SIGKILL)
    resumed = training.wait_for('resuming from step', first, _SECONDS_TO_START)
    return training.lines[_first_step(training, resumed)][0] - begin


def _processor_seconds(process):
    fields = pathlib.Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()
    return sum(map(int, fields[11:13])) / _TICKS


def _memory(training, task):
    """Returns bytes of a task's process and its supervisor."""
    text = ''.join(pathlib.Path(f'/proc/{process}/smaps_rollup').read_text()
                   for process in (training.supervisor(task), training.child(task)))
    return sum(map(int, re.findall(r'^Pss:\s+(\d+) kB', text, re.MULTILINE))) * 1024


def main(unused_argv):
    common.report(common.markdown_table(
        ['--cluster', 'workers', 'start: processor s, at most', 'first step after s', 'after a kill s', 'MiB',
         'MiB at most', 'exit code', 'processes left'], [_row(cluster) for cluster in _CLUSTERS.value]))


if __name__ == '__main__':
    app.run(main)
