"""Keras callbacks for `PipelineModel.fit`. `Trace` measures steps, and `Report` writes a page about the run."""

import datetime
import os
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingpipe import drawing, wording
from lingpipe.partition import balancing
from lingpipe.planner import plans
from lingpipe.tools import page, trace
from lingpipe.training import logdir as logdirs
from lingpipe.training import planning

_VALIDATION, _MEMORY = 'val_', 'Memory of each device'


class Trace(keras.callbacks.Callback):
    """A callback that measures some steps before training. It prints where the time went, and writes a timeline.

    Args:
        folder: folder for timeline.png and trace.json. ui.perfetto.dev shows trace.json.
        x: nest of tensors `[batch, ...]`, one batch.
        y: nest of tensors `[batch, ...]`, the targets of `x`.
        sample_weight: tensor `[batch, ...]`, or None.
    """

    def __init__(self, folder: str, x: Any, y: Any = None, sample_weight: Any = None, num_steps: int = 3) -> None:
        super().__init__()
        self._folder, self._batch, self._num_steps = folder, (x, y, sample_weight), num_steps

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Trace the model without changing it. Raise TypeError or ValueError if the model cannot be traced."""
        traced = trace.trace(self.model, *self._batch, num_steps=self._num_steps)
        traced.write(self._folder)
        print(traced, flush=True)


class Report(keras.callbacks.Callback):
    """A callback that writes an HTML page about a call of `fit`.

    The page shows curves, partitions, memory, the timeline of a step, and versions.

    Args:
        path: file of the page. An existing file is replaced.
        x: nest of tensors `[batch, ...]`, one batch for the timeline and the memory; None: the page lacks them.
        y: nest of tensors `[batch, ...]`, the targets of `x`.
        sample_weight: tensor `[batch, ...]`, or None.
    """

    def __init__(self, path: str = 'report.html', x: Any = None, y: Any = None, sample_weight: Any = None) -> None:
        super().__init__()
        self._path, self._batch = os.path.expanduser(path), None if x is None else (x, y, sample_weight)

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Create the folder of the page. Raise TypeError or ValueError if the model or the targets are unsuitable."""
        trace.require_compiled(self.model)
        if self._batch is not None:
            trace.require_targets(self.model, self._batch[1])
        tf.io.gfile.makedirs(os.path.dirname(self._path) or '.')
        self._started, self._curves = time.time(), {}

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Record the losses and metrics of an epoch."""
        scalars = {name: value for name, value in (logs or {}).items() if not np.ndim(value)}  # no values per class
        for name, value in scalars.items():
            by_run = self._curves.setdefault(name.removeprefix(_VALIDATION), {})
            by_run.setdefault('validation' if name.startswith(_VALIDATION) else 'training', []).append(
                (epoch + 1, float(value)))

    def on_train_end(self, logs: dict | None = None) -> None:
        """Write the page."""
        sections = {'Curves': self._drawn_curves(), 'Partitions': [page.table(str(self.model.pipe))],
                    'Memory': self._memory(), 'Timeline of a step': self._timeline(),
                    'Hardware and versions': [page.table(wording.table(['what', 'of the run'], [
                        list(row) for row in logdirs.versions().items()]))]}
        logdirs.replace_text(self._path, page.text(
            f'{self.model.name} · LingPipe', [page.element('p', self._facts())], sections))
        print(self._path, flush=True)

    def _facts(self):
        begin = datetime.datetime.fromtimestamp(self._started).astimezone()
        devices = ', '.join(dict.fromkeys(
            balancing.short_device(part.device) for part in self.model.pipe.partitions))
        num_epochs = max((points[-1][0] for runs in self._curves.values() for points in runs.values()), default=0)
        return (f'{num_epochs} epochs from {begin:%Y-%m-%d %H:%M %Z}, which took '
                f'{datetime.timedelta(seconds=round(time.time() - self._started))} on {devices}')

    def _drawn_curves(self):
        if not self._curves:
            return [page.missing('No epoch has ended.')]
        return [page.figure(drawing.curves(name, by_run, 'epoch'), name) for name, by_run in self._curves.items()]

    def _memory(self):
        def plan(x, *unused):
            planned = planning.plan(self.model, batch_size=len(keras.tree.flatten(x)[0]))
            return [page.figure(plans.figure(planned.plan, _MEMORY), _MEMORY), page.table(str(planned))]
        return self._of_batch(plan)

    def _timeline(self):
        def measure(*batch):
            traced = trace.trace(self.model, *batch)
            return [page.image(traced.png(), 'image/png', 'A measured step'), page.table(str(traced))]
        return self._of_batch(measure)

    def _of_batch(self, parts):
        """Return the page elements that `parts` makes from the batch, or a note that says why there are none."""
        if self._batch is None:
            return [page.missing('Report was given no batch.', "Report('report.html', x_batch, y_batch)")]
        try:
            return parts(*self._batch)
        except Exception as error:  # noqa: BLE001
            return [page.missing(str(error))]
