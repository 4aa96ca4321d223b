"""A profile of some training steps, taken by TensorFlow's profiler for TensorBoard."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.training import errors


def steps_of(text: str) -> tuple[int, int]:
    """Returns FIRST and LAST of 'FIRST:LAST', both counted from 1; raises ValueError if there are no such steps."""
    match = re.fullmatch(r'(\d+):(\d+)', str(text))
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f'train.profile_steps={text!r} is not possible: it must be FIRST:LAST with 1 <= FIRST <= LAST'
                         '. Give, for instance, --profile_steps=100:104.')
    return int(match[1]), int(match[2])


def validate(train: hyperparams.Params) -> None:
    """Raises ValueError if the steps to profile do not exist."""
    if train.profile_steps is None:
        return
    _, last = steps_of(train.profile_steps)
    if last > train.max_steps:
        raise ValueError(f'train.profile_steps={train.profile_steps!r} is not possible: training ends with step '
                         f'{train.max_steps} (train.max_steps). Profile earlier steps, or train for longer.')


class StepProfile:
    """Profiles a range of steps, each in a separate call.

    ::

        --profile_steps=100:102    97 98 99 │ 100 │ 101 │ 102 │ 103 104 105 ...     │: a call ends, another begins
                                            └──── profile ────┘

    Its methods take the number of steps done, and raise a `TrainingError` if the profiler fails.

    Args:
        steps: 'FIRST:LAST', or None to profile nothing.
        directory: folder for the profile, which is written to its `plugins/profile`.
    """

    def __init__(self, steps: str | None, directory: str) -> None:
        self._first, self._last = steps_of(steps) if steps else (1, 0)
        self._directory = directory
        self._is_recording = False

    def is_over(self, step: int) -> bool:
        """Returns whether the steps to profile come before `step`, from which the run resumes."""
        return 0 < self._last <= step

    def num_steps_ahead(self, step: int) -> list[int]:
        """Returns the limit of steps in the next call as a list, which is empty without a limit."""
        if self._first - 1 <= step < self._last:
            return [1]
        return [self._first - 1 - step] if step < self._first - 1 < self._last else []

    @contextlib.contextmanager
    def of_next_step(self, step: int) -> Iterator[None]:
        """Scope of the next call; starts the profile at its first step."""
        if not self._first - 1 <= step < self._last:
            yield
            return
        if not self._is_recording:
            self._begin()
        with tf.profiler.experimental.Trace('train', step_num=step + 1, _r=1):
            yield

    def _begin(self):
        try:
            tf.profiler.experimental.start(self._directory)
        except tf.errors.OpError as error:
            raise errors.TrainingError(
                f'Steps cannot be profiled ({errors.cause(error)}). End the other profile of this process, or leave '
                '--profile_steps out.') from error
        self._is_recording = True

    def end_after(self, step: int) -> str | None:
        """Ends the profile after its last step, and then returns a message; else returns None."""
        if not self._is_recording or step < self._last:
            return None
        self.close()
        return (f'Profile of steps {self._first} to {self._last}: {self._directory}/plugins/profile; tensorboard with '
                'tensorboard-plugin-profile shows it')

    def close(self) -> None:
        """Ends and writes an unfinished profile."""
        if not self._is_recording:
            return
        self._is_recording = False
        try:
            tf.profiler.experimental.stop()
        except tf.errors.OpError as error:
            raise errors.TrainingError(
                f'The profile could not be written to {self._directory} ({errors.cause(error)}). Free some space or '
                'choose another --logdir, then run the same command again.') from error
