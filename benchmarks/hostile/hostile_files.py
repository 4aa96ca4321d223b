"""Reads hostile files of every kind that LingPipe reads: no code may run, nothing outside be written, nobody hang.

    python -m benchmarks.hostile.hostile_files --changes=2000

Each kind is tried as it is, with attacks by hand, and with so many random changes. A trial that takes more than ten
seconds of processor time or 4 GiB, or waits for ten seconds, ends its process. That counts as a fault, as does an error
that is no sentence.
"""

import collections
import sys

from absl import app, flags

from benchmarks.hostile import model_readers, run_readers, text_readers, tool_readers, trial, waits
from benchmarks.support import common

_READERS = {**text_readers.READERS, **run_readers.READERS, **tool_readers.READERS, **model_readers.READERS}
_KINDS = flags.DEFINE_list('kinds', None, 'Names of the kinds to try; all by default.')
_CHANGES = flags.DEFINE_integer('changes', 200, 'How many random changes of each kind to try.', lower_bound=0)
_FIRST = flags.DEFINE_integer('first_change', 0, 'Seed of the first change; the others have the numbers after it.')
_ATTACKS = flags.DEFINE_bool('attacks', True, 'Whether to try attacks by hand.')


def outcomes(kind, cases):
    """Tries the good files of a kind, then cases: the name of an attack, or a seed.

    Yields:
        List of the kind of the outcome and its reason.
    """
    reader = _READERS[kind]
    folders = trial.Folders(reader)
    first = trial.good(reader, folders)  # which loads what is needed, before memory is limited
    trial.prepare()
    yield [first.kind, first.reason]
    for case in cases:
        outcome = (trial.attacked if isinstance(case, str) else trial.mutated)(reader, folders, case)
        yield [outcome.kind, outcome.reason]


def _all_outcomes(kind, cases):
    """Yields triples of a case, None for the good files, the kind of its outcome and its reason.

    A process that dies is replaced, unless of its good files.
    """
    case, rest = None, list(cases)
    while True:
        with common.Process(outcomes, kind, rest) as process:
            try:
                good = process.next()
                if case is None:
                    yield case, *good
                while rest:
                    case = rest.pop(0)
                    with waits.limited(process.pid, trial.SECONDS):
                        outcome = process.next()
                    yield case, *outcome
            except common.ProcessDied as death:
                yield case, trial.FAULT, f'the process died: {death}'
        if case is None or not rest:
            return


def main(unused_argv):
    rows, faults = [], []
    for kind in _KINDS.value or _READERS:
        names = list(_READERS[kind].attacks('', '')) if _ATTACKS.value else []
        seeds = range(_FIRST.value, _FIRST.value + _CHANGES.value)
        found = collections.Counter()
        for case, outcome, reason in _all_outcomes(kind, [*names, *seeds]):
            found[outcome] += 1
            if outcome == trial.FAULT or case is None and outcome != trial.READ:
                faults.append(f'{kind}, {"good files" if case is None else case}: {reason}')
                print(faults[-1], file=sys.stderr, flush=True)
        rows.append([kind, len(names), len(seeds), found[trial.READ], found[trial.REFUSED], found[trial.FAULT]])
    table = common.markdown_table(['file', 'attacks', 'changes', 'read', 'refused', 'faults'], rows)
    common.report(table, *faults, f'{len(faults)} faults.')


if __name__ == '__main__':
    app.run(main)
