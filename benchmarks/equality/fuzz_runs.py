"""Looks for runs that lose checkpoints, mix them up or end with other numbers: draws what may happen to two runs beside
each other.

    python -m benchmarks.equality.fuzz_runs --sequences=200 --seed=0

Commands are trained, struck by signals, full disks and readers that go away, resumed with changes, evaluated, exported.
After each event, every complete checkpoint must be that of an undisturbed run, bit for bit, and exit codes those of
docs/faults.md. What is printed for a failure is a program that lets the same events happen again, without those that it
does not need. Linux only.
"""

import collections
import os
import pathlib
import re
import sys
import time

from absl import app, flags

from benchmarks.support import common
from tests.fuzz_runs import machine, strikes

_SEQUENCES = flags.DEFINE_integer('sequences', 200, 'How many sequences of events to try.', lower_bound=1)
_EVENTS = flags.DEFINE_integer(
    'events', 4, 'Events of a sequence, beside the first training and the end.', lower_bound=1)
_SEED = flags.DEFINE_integer('seed', 0, 'Another seed, other sequences.')
_FAULTS = flags.DEFINE_list('faults', list(strikes.FAULTS), 'Faults that may strike.')
flags.register_validator(
    _FAULTS, lambda faults: faults and set(faults) <= set(strikes.FAULTS), f'Choose among {", ".join(strikes.FAULTS)}.')
_SHRUNKEN = flags.DEFINE_integer(
    'shrunken', 10, 'How many of the failures to shrink and print, each of another kind.', lower_bound=0)
_SECONDS_TO_SHRINK = 180


def _kind_of(broken):
    """Return what failures of one kind have in common."""
    return re.sub(r'\d{3,}', '…', broken.split(': ')[0])[:100]


def _report(sequences, seconds):
    failures = collections.defaultdict(list)
    for number, sequence in enumerate(sequences):
        if sequence.broken:
            failures[_kind_of(sequence.broken)].append(number)
    num_events = sum(len(sequence.events) for sequence in sequences)
    parts = [
        f'{len(sequences)} sequences of {num_events} events from seed {_SEED.value} in {seconds / 60:.1f} min, '
        f'{60 * len(sequences) / seconds:.1f} sequences a minute; {sum(map(len, failures.values()))} are broken. '
        f'Processor: {_processor_seconds() / max(1, num_events):.1f} s an event.',
        common.Table(
            ['event', 'times', 'broken'], [[label, *both] for label, both in machine.counts(sequences).items()])]
    if failures:
        parts.append(common.Table(
            ['kind', 'sequences', 'first'], [[kind, len(found), found[0]] for kind, found in failures.items()]))
    for kind, found in list(failures.items())[:_SHRUNKEN.value]:
        small = machine.shrunken(sequences[found[0]], _kind_of, _SECONDS_TO_SHRINK)
        parts.append(f'Sequence {found[0]}: {kind}\n\n```python\n{machine.source_of(small)}\n```\n\n{small.broken}')
    common.report(*parts)


def _processor_seconds():
    """Return what the processes took that the commands were forked from, and the commands."""
    stats = [path.read_text().rpartition(')')[2].split() for path in pathlib.Path('/proc').glob('[0-9]*/stat')]
    return sum(map(int, sum([stat[11:15] for stat in stats if int(stat[1]) == os.getpid()], []))) / os.sysconf('SC_CLK_TCK')


def main(unused_argv):
    sequences, start = [], time.monotonic()

    def on_end(sequence):
        sequences.append(sequence)
        verdict = ' '.join(sequence.broken.split())[:200] or 'holds'
        print(f'{len(sequences) - 1} {time.monotonic() - start:.0f} s {len(sequence.events)} events {verdict}',
              file=sys.stderr, flush=True)

    machine.run(_SEQUENCES.value, _EVENTS.value, _SEED.value, on_end, _FAULTS.value)
    _report(sequences, time.monotonic() - start)


if __name__ == '__main__':
    app.run(main)
