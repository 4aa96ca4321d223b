"""The command of `first_step`, with a clock that says what each part of the start takes; it imports nothing itself.

It runs in a fresh process, and ends it after the first step.
"""

import builtins
import contextlib
import functools
import importlib
import json
import os
import sys
import time
from typing import NamedTuple

import wrapt

TENSORFLOW, DATASETS, OTHERS = 'imports: TensorFlow and Keras', 'imports: TensorFlow Datasets', 'imports: the rest'
TRACING, EXECUTION = 'tracing: the rest', 'first execution'
REST = 'the rest: Python, flags, params, devices'
_IMPORTS = {'tensorflow': TENSORFLOW, 'keras': TENSORFLOW, 'tensorflow_datasets': DATASETS}
_RANKS = {TENSORFLOW: 3, DATASETS: 2, OTHERS: 1}  # what a package imports counts as its own, but for what ranks higher


class _Place(NamedTuple):
    phase: str
    module: str
    name: str


PLACES = (
    _Place('input', 'lingpipe.training.experiment', 'build_input'),
    _Place('input', 'lingpipe.training.train_program', 'TrainProgram.open_input'),
    _Place('building: analysis of the layers', 'lingpipe.pipeline.layer_sources', 'LayersOfParams.analyses'),
    _Place('building: layers and weights', 'lingpipe.training.experiment', 'build_task'),
    _Place('building: optimizer', 'lingpipe.training.train_program', 'TrainProgram.__init__'),
    _Place('log directory and curves', 'lingpipe.training.trainer', 'Trainer._begin'),
    _Place('tracing: stages', 'lingpipe.pipeline.stage_wiring', 'trace'),
    _Place('tracing: schedule', 'lingpipe.pipeline.executor', 'Execution.run'),
    _Place('tracing: gradients', 'lingpipe.pipeline.gradient_flow', 'finish'),
    _Place('tracing: update', 'lingpipe.training.train_program', 'TrainProgram._train_on'),
    _Place(TRACING, 'lingpipe.training.train_program', 'TrainProgram._steps'),
    _Place(EXECUTION, 'lingpipe.training.train_program', 'TrainProgram.run'),
)
PHASES = tuple(dict.fromkeys([TENSORFLOW, DATASETS, OTHERS, *[place.phase for place in PLACES], REST]))


class _Clock:
    """Adds up what each phase takes without the phases inside of it; other threads count for the phase under way."""

    def __init__(self, started):
        self.seconds = {phase: [0.0, 0.0] for phase in PHASES}
        self.phases, self._read = [REST], (started, 0.0)

    def tick(self):
        """Gives what has passed to the phase under way."""
        now = time.time(), time.process_time()
        for index, (end, begin) in enumerate(zip(now, self._read)):
            self.seconds[self.phases[-1]][index] += end - begin
        self._read = now

    @contextlib.contextmanager
    def phase(self, name):
        """Gives what the `with` block takes to a phase."""
        self.tick()
        self.phases.append(name)
        try:
            yield
        finally:
            self.tick()
            self.phases.pop()

    def timed(self, name, function):
        """Wraps a function so that its calls are a phase."""
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            with self.phase(name):
                return function(*args, **kwargs)

        return wrapper

    def timed_import(self, load):
        """Wraps `__import__` or `import_module`."""
        @functools.wraps(load)
        def wrapper(name, *args, **kwargs):
            phase, current = _IMPORTS.get(name.partition('.')[0], OTHERS), self.phases[-1]
            if _RANKS.get(current, 0) >= _RANKS[phase]:
                return load(name, *args, **kwargs)
            with self.phase(phase):
                return load(name, *args, **kwargs)

        return wrapper


def _watch(clock):
    builtins.__import__ = clock.timed_import(builtins.__import__)
    importlib.import_module = clock.timed_import(importlib.import_module)
    for place in PLACES:
        wrapt.when_imported(place.module)(functools.partial(_wrap, clock, place))


def _wrap(clock, place, module):
    *owners, name = place.name.split('.')
    owner = functools.reduce(getattr, owners, module)
    setattr(owner, name, clock.timed(place.phase, getattr(owner, name)))


def _end_after_first_step(clock, path, module):
    """TensorFlow finishes a trace after the traced function returns, so the trace is asked for by itself."""
    trainer = module.Trainer
    train_steps = trainer._train_steps

    def first(self, num_steps):
        import tensorflow as tf
        with clock.phase(TRACING):
            self._program._function.get_concrete_function(self._iterator, tf.constant(num_steps, tf.int64))
        train_steps(self, num_steps)
        clock.tick()
        with open(path, 'w', encoding='utf-8') as file:
            json.dump({'phases': clock.seconds, 'loss': float(self._metrics['loss'][0])}, file)
        sys.stdout.flush()
        os._exit(0)

    trainer._train_steps = first


def main():
    """Takes the time when the process was started, the file to write to, and the words of the command."""
    started, path, *words = sys.argv[1:]
    clock = _Clock(float(started))
    os.environ.pop('TF_CPP_MIN_LOG_LEVEL', None)  # which `benchmarks` sets, and the command then leaves as it is
    _watch(clock)
    wrapt.when_imported('lingpipe.training.trainer')(functools.partial(_end_after_first_step, clock, path))
    from lingpipe.command_line import command
    sys.argv = ['run.py', *words]
    command.run()


if __name__ == '__main__':
    main()
