"""Draws lives of runs: hypothesis chooses the events, `life` lets them happen."""

import collections
import pathlib
import tempfile
import time
from typing import Any, NamedTuple

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st

from tests.fuzz_runs import commands, configs, folders, life, references, strikes

_LAST_NUMBERS = {strikes.START: 1, strikes.BATCH: 8, strikes.EVALUATION: 4, strikes.FILE: 60}
_LIMITS = {'full disk': (0, 100, 500, 2000), 'STOP': (20, 300)}


class Sequence(NamedTuple):
    """A life that has ended: tuples of an event and its arguments, and what did not hold at the last one, or ''."""

    names: tuple
    events: list
    broken: str


def _strikes(faults):
    """Return the strategy of a `commands.Strike`."""
    def strike(fault, moment):
        return st.builds(commands.Strike, st.just(fault), st.just(moment), st.integers(1, _LAST_NUMBERS[moment]),
                         st.sampled_from(_LIMITS.get(fault, (0,))))

    moments = st.sampled_from([*strikes.MOMENTS, strikes.BATCH, strikes.FILE, strikes.FILE])
    return st.tuples(st.sampled_from(faults), moments).flatmap(lambda drawn: strike(*drawn))


def machine_of(faults, numbers, names, make_life, on_end):
    """Return the class of a machine that draws events."""
    fields = {**numbers, **configs.HABITS, 'max_steps': configs.STEPS}
    usual = configs.Config()._asdict()
    drawn_configs = st.builds(configs.Config, **{
        name: st.sampled_from([*[value] * (name not in configs.HABITS), *fields.get(name, ())])
        for name, value in usual.items()})
    which, drawn_strikes, drawn_names = st.integers(0, 1), _strikes(faults), st.sampled_from(names)

    class Machine(stateful.RuleBasedStateMachine):
        """Two runs and what may happen to them."""

        def __init__(self):
            super().__init__()
            self._broken = ''

        @stateful.initialize(names=drawn_names, config=drawn_configs)
        def begin(self, names, config):
            self._names, self._life = names, make_life(names)
            self._do('train', 0, config)

        @stateful.rule(which=which, config=drawn_configs, strike=st.none() | drawn_strikes)
        def train(self, which, config, strike):
            self._do('train', which, config, strike)

        @stateful.rule(which=which, steps=st.none() | st.sampled_from(configs.STEPS), strike=drawn_strikes)
        def resume_struck(self, which, steps, strike):
            self._do('resume', which, steps, strike)

        @stateful.rule(which=which, config=drawn_configs, strike=drawn_strikes)
        def train_struck(self, which, config, strike):
            self._do('train', which, config, strike)

        @stateful.rule(which=which, steps=st.none() | st.sampled_from(configs.STEPS))
        def resume(self, which, steps):
            self._do('resume', which, steps)

        @stateful.rule(which=which, change=st.sampled_from(sorted(fields)).flatmap(
            lambda name: st.tuples(st.just(name), st.sampled_from(fields[name]))), strike=st.none() | drawn_strikes)
        def change(self, which, change, strike):
            self._do('change', which, *change, strike)

        @stateful.rule(which=which, what=st.sampled_from(['newest', 'oldest', 'best']))
        def evaluate(self, which, what):
            self._do('evaluate', which, what)

        @stateful.rule(which=which, event=st.sampled_from(
            ['follow', 'export', 'report', 'damage', 'lose_list', 'begin_again']))
        def other(self, which, event):
            self._do(event, which)

        def _do(self, *event):
            if not self._broken:
                self._broken = _broken_by(self._life, event)

        def teardown(self):
            if hasattr(self, '_life'):
                self._do('end')
                on_end(Sequence(self._names, self._life.events, self._broken))

    return Machine


def _broken_by(lived, event):
    """Let an event happen; return what did not hold, or ''."""
    try:
        lived.do(*event)
    except folders.Broken as broken:
        return str(broken)
    return ''


def run(num_sequences, num_events, seed, on_end, faults=strikes.FAULTS, numbers=configs.NUMBERS, names=life.NAMES):
    """Draw lives and let them happen."""
    with tempfile.TemporaryDirectory() as folder:
        made = references.References(folder)

        def make_life(names):
            return life.Life(tempfile.mkdtemp(dir=folder), names, made)

        machine = hypothesis.seed(seed)(machine_of(faults, numbers, names, make_life, on_end))
        stateful.run_state_machine_as_test(machine, settings=hypothesis.settings(
            max_examples=num_sequences, stateful_step_count=num_events + 1, database=None, deadline=None,
            phases=[hypothesis.Phase.generate], suppress_health_check=list(hypothesis.HealthCheck)))


def replayed(names, events, known=None):
    """Let the events of a life happen again."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, 'references').mkdir()
        lived = life.Life(folder, names, known or references.References(f'{folder}/references'))
        for event in events:
            broken = _broken_by(lived, event)
            if broken:
                return Sequence(names, lived.events, broken)
        return Sequence(names, lived.events, '')


def shrunken(sequence, kind_of, seconds):
    """Leave out events of a sequence as long as it breaks in the same way."""
    end = time.monotonic() + seconds
    place = len(sequence.events) - 2
    while place >= 0 and time.monotonic() < end:
        events = sequence.events[:place] + sequence.events[place + 1:]
        tried = replayed(sequence.names, events)
        if tried.broken and kind_of(tried.broken) == kind_of(sequence.broken):
            sequence = tried
        place = min(place, len(sequence.events) - 1) - 1
    return sequence


def source_of(sequence):
    """Return the program that replays a sequence."""
    events = '\n'.join(f'    {event!r},' for event in sequence.events)
    return ('from tests.fuzz_runs import machine\nfrom tests.fuzz_runs.commands import Strike\n'
            'from tests.fuzz_runs.configs import Config\n\n'
            f'print(machine.replayed({sequence.names!r}, [\n{events}\n]).broken)')


def counts(sequences):
    """Return {event: (how often it happened, how often it broke something)}."""
    happened, broke = collections.Counter(), collections.Counter()
    for sequence in sequences:
        happened.update(_label(event) for event in sequence.events)
        if sequence.broken:
            broke[_label(sequence.events[-1])] += 1
    return {label: (happened[label], broke[label]) for label in sorted(happened)}


def _label(event):
    """Return the name of an event, with the fault that was to strike."""
    struck: Any = [argument.fault for argument in event if isinstance(argument, commands.Strike)]
    changed = [event[2]] if event[0] == 'change' else []
    return ' '.join([event[0], *changed, *(f'+ {fault}' for fault in struck)])
