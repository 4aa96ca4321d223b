"""Showing a person how training goes: a bar in a terminal, plain lines elsewhere."""

import sys
import time

import tqdm


class Progress:
    """Shows step, metrics, images per second and time left.

    Args:
        max_steps: last step.
        start_step: step at which this run starts.
        examples_per_step: size of a mini-batch.
        interval_seconds: seconds between two plain lines.
        stream: where to write; standard error by default, as tqdm does.
    """

    def __init__(self, max_steps, start_step, examples_per_step, interval_seconds=5.0, stream=None):
        self._stream = stream or sys.stderr
        self._max_steps, self._examples_per_step = max_steps, examples_per_step
        self._interval_seconds = interval_seconds
        self._started = self._shown = time.monotonic()
        self._start_step = self._step = start_step
        self._bar = None
        if self._stream.isatty():
            self._bar = tqdm.tqdm(
                total=max_steps, initial=start_step, file=self._stream, unit=' steps', dynamic_ncols=True,
                bar_format='step {n_fmt}/{total_fmt} |{bar}| {elapsed}, {remaining} left{postfix}')

    def update(self, step, metrics, done_steps, seconds):
        """Shows a new state.

        Args:
            step: current step.
            metrics: dictionary from name to number.
            done_steps: steps since the last update.
            seconds: seconds that they took.
        """
        self._step = step
        text = ', '.join([*map(format_metric, metrics.items()), f'{done_steps * self._examples_per_step / seconds:,.0f} images/s'])
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(step - self._bar.n)
        elif time.monotonic() - self._shown >= self._interval_seconds or step >= self._max_steps:
            self._shown = time.monotonic()
            self.write(f'step {step}/{self._max_steps}, {text}, {_clock(self._seconds_left())} left')

    def write(self, text):
        """Prints a line without tearing the bar apart."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            print(text, file=self._stream, flush=True)

    def close(self):
        """Leaves the bar as it stands."""
        if self._bar is not None:
            self._bar.close()

    def _seconds_left(self):
        done = self._step - self._start_step
        return (time.monotonic() - self._started) / max(done, 1) * (self._max_steps - self._step)


def format_metric(item):
    """Returns 'accuracy 98.40 %' or 'loss 0.1234' for a (name, value) pair."""
    name, value = item
    return f'{name} {100 * value:.2f} %' if name == 'accuracy' else f'{name} {value:.4f}'


def _clock(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours}:{minutes:02d}:{seconds:02d}' if hours else f'{minutes}:{seconds:02d}'
