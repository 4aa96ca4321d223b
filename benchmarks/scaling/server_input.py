"""Training with a parameter server where the chief reads the batches, and where each worker reads its own: throughput,
and what the chief sends.

    python -m benchmarks.scaling.server_input

A perceptron of four layers learns a linear function of --features numbers, by asynchronous or synchronous updates. Its
workers compute, each on one thread; they share the cores of this machine. Bytes are those that the kernel counts for the
connections of the chief's process (ss), after its first steps.
"""

import itertools
import os
import re
import subprocess
import sys
import time

import keras
from absl import app, flags

from benchmarks.scaling import cluster_servers
from benchmarks.support import common
from lingpipe import layers
from lingpipe.devices import device_kinds
from lingpipe.placements import parameter_servers, server_program
from params import linear_regression

_UPDATES = flags.DEFINE_list('updates', list(parameter_servers.MODES), 'Kinds of updates to measure.')
_WORKERS = flags.DEFINE_list('num_workers', ['1', '2', '4'], 'Numbers of workers to measure with.')
_SECONDS = flags.DEFINE_float('seconds', 8.0, 'How long each training is measured.', lower_bound=0.1)
_FEATURES = flags.DEFINE_integer('features', 3072, 'Numbers that an example has.', lower_bound=1)
_UNITS = flags.DEFINE_integer('units', 256, 'Units of a hidden layer.', lower_bound=1)
_ROWS = flags.DEFINE_integer('rows', 256, 'Examples that a worker gets in a step.', lower_bound=1)

_WARM_UP_STEPS = 10
_HEADER = ['updates', 'batches from', 'workers', 'examples/s', 'times as fast as one', 'KiB that the chief sends a step']


class Perceptron(linear_regression.EightWeights):
    """Four layers, and a batch for each of some workers.

    Args:
        num_shares: how many workers share a batch.
    """

    def __init__(self, num_shares):
        self._num_shares = num_shares

    def Train(self):
        return super().Train().Set(num_features=_FEATURES.value, batch_size=_ROWS.value * self._num_shares)

    def Task(self):
        p = super().Task()
        p.body.Set(recompute='none', layers=[
            *[layers.KerasParams(keras.layers.Dense, units=_UNITS.value, activation='relu') for _ in range(3)],
            layers.KerasParams(keras.layers.Dense, units=1)])
        p.train.Set(learning_rate=1e-4, max_steps=10**9)
        return p


def train(update, batches_from, num_workers):
    """Runs in a process of its own.

    Yields:
        Dictionary: 'examples' a second, and 'bytes' that the chief sends a step.
    """
    device_kinds.use_virtual_devices(1)
    with cluster_servers.running(num_workers, 1, [{}] * num_workers) as config:
        servers = parameter_servers.ParameterServers(config, update, batches_from=batches_from)
        made = Perceptron(num_workers if update == parameter_servers.SYNCHRONOUS else 1)
        program, _, data = cluster_servers.program_of(made, servers)
        iterator = program.open_input(data, 0)
        program.run(iterator, _WARM_UP_STEPS)
        yield _measured(program, iterator, data.params.batch_size)


def _measured(program, iterator, rows):
    begin, sent, steps = time.perf_counter(), _sent_bytes(os.getpid()), 0
    while (seconds := time.perf_counter() - begin) < _SECONDS.value:
        steps += program.run(iterator, 1).num_steps
    return {'examples': steps * rows / seconds, 'bytes': (_sent_bytes(os.getpid()) - sent) / steps}


def _sent_bytes(process):
    """Returns how many bytes the open connections of a process have sent."""
    lines = subprocess.run(['ss', '-tinpH'], capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(int(found[1]) for head, details in itertools.pairwise(lines)
               if f'pid={process},' in head and (found := re.search(r'bytes_sent:(\d+)', details)))


def _result(*training):
    with common.Process(train, *training) as process:
        return process.next()


def main(unused_argv):
    counts, rows = [int(count) for count in _WORKERS.value], []
    for update, batches_from in itertools.product(_UPDATES.value, server_program.BATCHES_FROM):
        one = None
        for count in counts:
            result = _result(update, batches_from, count)
            one = one or result['examples']
            rows.append([update, batches_from, count, f'{result["examples"]:.0f}', f'{result["examples"] / one:.2f}',
                         f'{result["bytes"] / 2**10:.1f}'])
            print(rows[-1], file=sys.stderr, flush=True)
    common.report(
        common.markdown_table(_HEADER, rows),
        f'{_ROWS.value} examples of {_FEATURES.value} numbers for each worker and step, {_FEATURES.value * _ROWS.value // 2**8} KiB; '
        f'one parameter server; {_SECONDS.value:g} s each.')


if __name__ == '__main__':
    app.run(main)
