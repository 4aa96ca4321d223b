"""The output of a training run, such as a progress bar and curves for TensorBoard.

In a terminal one line is updated. Elsewhere a line is printed at intervals::

    step 5000/20000 |██▌       | loss 1.2346, accuracy 98.77 %, 6,400 images/s, 05:00 left
    step 5000/20000, loss 1.2346, accuracy 98.77 %, 6,400 images/s, 05:00 left
"""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
import tqdm

from lingpipe.input import base_input

STEPS, INPUT, SAVING, EVALUATION = KINDS = ('steps', 'input', 'saving', 'evaluation')  # where time goes
_CLOCK = tqdm.tqdm.format_interval
_BAR = 'step {n_fmt}/{total_fmt} |{bar}| '


def bad_records_text(inputs: dict[str, base_input.BaseInput]) -> str:
    """Return a text with a line for each input that has skipped records."""
    return '\n'.join(f'{name}: bad records of {data.source}: {len(data.bad_records)}, named in the log'
                     for name, data in inputs.items() if data.bad_records)


class SummaryWriter:
    """Writer of scalars and texts to an event file for TensorBoard."""

    def __init__(self, directory: str) -> None:
        self._writer = tf.summary.create_file_writer(directory)

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        """Add a point to each curve in `values`."""
        with self._writer.as_default():
            for name, value in values.items():
                tf.summary.scalar(name, value, step=step)

    def text(self, name: str, text: str, step: int) -> None:
        """Write a text under `name` at `step`."""
        with self._writer.as_default():
            # Indented, so that TensorBoard preserves the spaces.
            tf.summary.text(name, '\n'.join('    ' + line for line in text.splitlines()), step=step)

    def flush(self) -> None:
        """Write all buffered points and texts to the file."""
        self._writer.flush()


class TimeSpent:
    """Seconds spent on each of `KINDS`. The first step is not counted."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(KINDS, 0.0)

    @contextlib.contextmanager
    def of(self, kind: str) -> Iterator[None]:
        """Count the time inside this scope."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.seconds[kind] += time.monotonic() - begin

    def __str__(self) -> str:
        total = sum(self.seconds.values())
        shares = ', '.join(f'{kind} {100 * seconds / total:.0f} %' for kind, seconds in self.seconds.items())
        return f'Time {_CLOCK(total)} after the first step: {shares}'


class Progress:
    """Display of step, metrics, examples per second and time left.

    Args:
        example_name: name of the examples, such as 'images'.
        stream: where to write; None: standard error.
    """

    def __init__(self, max_steps: int, start_step: int, examples_per_step: int, example_name: str,
                 interval_seconds: float = 5.0, stream: Any = None) -> None:
        self._stream = stream or sys.stderr
        self._max_steps, self._examples_per_step = max_steps, examples_per_step
        self._example_name, self._interval_seconds = example_name, interval_seconds
        self._shown = time.monotonic()
        self._measured_from: tuple[float, int] | None = None  # a time, and the step then
        self._bar = None
        if self._stream.isatty():
            self._bar = tqdm.tqdm(total=max_steps, initial=start_step, file=self._stream, miniters=1, bar_format=_BAR,
                                  dynamic_ncols=True)

    def update(self, step: int, metrics: dict[str, Any], done_steps: int, seconds: float) -> None:
        """Show the state at a step. The last `done_steps` steps took `seconds`."""
        rate = f'{done_steps * self._examples_per_step / seconds:,.0f} {self._example_name}/s'
        left = f'{_CLOCK(self._seconds_left(step, done_steps, seconds))} left'
        text = ', '.join([*([metrics_text(metrics)] if metrics else []), rate, left])
        if self._bar is not None:
            self._bar.bar_format = _BAR + text
            self._bar.update(step - self._bar.n)
        elif time.monotonic() - self._shown >= self._interval_seconds or step >= self._max_steps:
            self._shown = time.monotonic()
            self.write(f'step {step}/{self._max_steps}, {text}')

    def write(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Close the bar, which stays visible."""
        if self._bar is not None:
            self._bar.close()

    def _seconds_left(self, step: int, done_steps: int, seconds: float) -> float:
        """Return the estimated seconds to the last step."""
        now = time.monotonic()
        if self._measured_from is None:
            self._measured_from = now - seconds, step - done_steps  # the first step is not given to `update`
        begin, first_step = self._measured_from
        return (now - begin) / (step - first_step) * (self._max_steps - step)


def metrics_text(metrics: dict[str, Any]) -> str:
    """Return a text such as 'loss 0.1234, accuracy 98.40 %'."""
    return ', '.join(f'{name} {100 * value:.2f} %' if name.startswith(('accuracy', 'exact_match'))
                     else f'{name} {value:.4f}' for name, value in metrics.items())
