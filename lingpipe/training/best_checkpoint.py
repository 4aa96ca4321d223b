"""The best checkpoint by a metric, and best.json beside it, which has its step and value."""

import json
import math
from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf
from absl import logging

from lingpipe.training import checkpoints
from lingpipe.training import logdir as logdirs


class Record(NamedTuple):
    """The contents of best.json."""

    step: int
    metric: str
    value: float
    input: str  # text of the Params of the examples that were evaluated


class BestCheckpoint:
    """The best value so far of one metric, and the step of its checkpoint.

    Args:
        folder: that of the checkpoint, 'best' in the log directory.
        metric: name of the metric; None: no checkpoint is kept.
        input_text: text of the Params of the input that is evaluated.
    """

    def __init__(self, folder: str, metric: str | None, input_text: str) -> None:
        self._folder, self._metric, self._input_text = folder, metric, input_text
        self._file = tf.io.gfile.join(folder, 'best.json')

    def read(self, is_larger_better: bool | None, resumes: bool) -> None:
        """Read an earlier start's record; warn if the next value is not compared with it, or comes from other examples.

        Args:
            resumes: whether the training run continues from a checkpoint.

        Raises:
            TrainingError: best.json is corrupt.
        """
        self._sign = 1 if is_larger_better else -1
        self._recorded = self._best = found = logdirs.parsed(self._file, _record_of)
        if not found or not self._metric:
            return
        reason = self._reason_to_replace(found, resumes)
        other = [change for change in logdirs.changes(found.input, self._input_text)
                 if not change.startswith('batch_size : ')]
        if reason:
            self._best = None
            logging.warning('%s %s: the next evaluation replaces it.', self._folder, reason)
        elif other:
            logging.warning('%s is the best by other examples (%s), and is replaced only by a better value. If the '
                            'values cannot be compared, delete best.json in it: the next evaluation replaces it then.',
                            self._folder, '; '.join(other))

    def _reason_to_replace(self, found: Record, resumes: bool) -> str | None:
        if not resumes:
            return 'is of an earlier training run, and this one starts from its first step'
        if found.metric != self._metric:
            return f'is the best by {found.metric}, and eval.best_metric is {self._metric} now'
        if found.step not in map(checkpoints.step_of, checkpoints.complete(self._folder)):
            return f'has no checkpoint of step {found.step}, of which its best.json is'
        return None

    def improved(self, step: int, metrics: Mapping[str, float]) -> Record | None:
        """Return the record of this step, to be written with its checkpoint, if it is better than all before.

        A record of the same step by an earlier run is deleted: its checkpoint is about to be replaced.
        """
        value = metrics.get(self._metric) if self._metric else None
        if value is None or not math.isfinite(value):
            return None
        if self._best and self._sign * value <= self._sign * self._best.value:
            return None
        if self._recorded and self._recorded.step == step:
            tf.io.gfile.remove(self._file)
            self._recorded = None
        self._best = Record(step, str(self._metric), value, self._input_text)
        return self._best

    def write(self, record: Record) -> None:
        """Write best.json, once the checkpoint of the record is complete."""
        logdirs.replace_text(self._file, json.dumps(record._asdict()) + '\n')


def _record_of(text: str) -> Record:
    record = json.loads(text)
    return Record(int(record['step']), str(record['metric']), float(record['value']), str(record.get('input', '')))
