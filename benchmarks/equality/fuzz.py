"""Looks for models that a pipeline computes differently from plain Keras: draws random models and runs each both ways.

    python -m benchmarks.equality.fuzz --minutes=60 --models=1000 --seed=0

TensorFlow decides by the processor whether to use oneDNN; TF_ENABLE_ONEDNN_OPTS=0 or =1 overrides it.

Models run in separate processes; one that hangs or dies is a crash like any other. A model that fails is printed as a
program to paste into a file and run.
"""

import collections
import gc
import os
import re
import signal
import sys
import time

import tensorflow as tf
from absl import app, flags

from benchmarks.support import common
from lingpipe.devices import device_kinds
from tests.fuzz import comparison, drawing, program, trial

_MINUTES = flags.DEFINE_float('minutes', 60.0, 'How long to look.', lower_bound=0.0)
_MODELS = flags.DEFINE_integer('models', 1000, 'How many models to try.', lower_bound=1)
_SEED = flags.DEFINE_integer('seed', 0, 'Another seed, other models: the first is drawn from 1,000,000 times the seed.')
_PRINTED = flags.DEFINE_integer(
    'printed', 10, 'How many of the failures to print, each of another kind.', lower_bound=0)

_SEEDS_APART = 1_000_000
_MODELS_IN_A_PROCESS = 100
_MOST_CPU_SECONDS = 240  # of one model; ends a loop that another program on the machine cannot lengthen
_MOST_SECONDS = 1200  # ends a hang
_FAILURES = (comparison.DIFFERENT, comparison.CRASHED)


def outcomes(first, count):
    """Run the models of some seeds.

    Yields:
        List of the seed, the kind of the outcome and its reason.
    """
    _prepare()
    for seed in range(first, first + count):
        _limit_time()
        outcome = trial.outcome_of(drawing.program_of(seed))
        yield [seed, outcome.kind, outcome.reason]


def _prepare():
    device_kinds.use_virtual_devices(8)
    tf.get_logger().setLevel('ERROR')
    gc.collect()
    gc.freeze()  # else garbage is looked for in all of TensorFlow after each model


def _limit_time():
    """Let signals end the process if the next model takes too long."""
    signal.setitimer(signal.ITIMER_PROF, _MOST_CPU_SECONDS)
    signal.alarm(_MOST_SECONDS)


def _signature(reason):
    """Return what the reasons of failures of one kind have in common: their first words, without numbers."""
    return re.sub(r'\W*\d[\d.e+-]*', '', re.split(r'[,:] | at ', reason)[0])[:60]


def _all_outcomes():
    """Yield what `outcomes` does, and for a process that died a crash, until the time or the models are spent."""
    end, seed = time.monotonic() + 60 * _MINUTES.value, _SEED.value * _SEEDS_APART
    last = seed + _MODELS.value
    while seed < last and time.monotonic() < end:
        count = min(_MODELS_IN_A_PROCESS, last - seed)
        with common.Process(outcomes, seed, count) as process:
            for _ in range(count):
                if time.monotonic() > end:
                    return
                try:
                    outcome = process.next()
                except common.ProcessDied as death:
                    outcome = [seed, comparison.CRASHED, f'process died: {death}']
                yield outcome
                seed += 1
                if outcome[2].startswith('process died'):
                    break


def _report(found, failures, refusals, seconds):
    rows = [
        [kind, number, f'{100 * number / max(1, sum(found.values())):.1f} %'] for kind, number in sorted(found.items())]
    table = common.Table(['outcome', 'models', 'part'], [*rows, ['all', sum(found.values()), '']])
    parts = [f'{sum(found.values())} models from seed {_SEED.value * _SEEDS_APART} in {seconds / 60:.0f} min, '
             f"TF_ENABLE_ONEDNN_OPTS={os.environ.get('TF_ENABLE_ONEDNN_OPTS', 'as TensorFlow sets it')}.", table]
    if refusals:
        parts.append(
            common.Table(['refused', 'models'], [[text, number] for text, number in refusals.most_common()]))
    if failures:
        parts.append(common.Table(
            ['kind', 'reason', 'models', 'first'],
            [[kind, signature, len(seeds), seeds[0][0]] for (kind, signature), seeds in failures.items()]))
    for (kind, _), seeds in list(failures.items())[:_PRINTED.value]:
        parts.append(f'Seed {seeds[0][0]}: {kind}\n\n```python\n{program.source_of(drawing.program_of(seeds[0][0]))}\n```')
    common.report(*parts)


def main(unused_argv):
    found, refusals, failures = collections.Counter(), collections.Counter(), collections.defaultdict(list)
    start = time.monotonic()
    for seed, kind, reason in _all_outcomes():
        found[kind] += 1
        if kind == comparison.REFUSED:
            refusals[re.sub(r"'[^']*'|\d+", '…', reason)] += 1
        if kind in _FAILURES:
            failures[kind, _signature(reason)].append((seed, reason))
        print(f'{seed} {kind} {reason[:200]}', file=sys.stderr, flush=True)
    _report(found, failures, refusals, time.monotonic() - start)


if __name__ == '__main__':
    app.run(main)
