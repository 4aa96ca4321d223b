"""Step times that the planner expects of A100s, beside steps that others measured, and a fit of what A100s reach.

    python benchmarks/planned_gpu.py --rows=a100_iterations.csv
    python benchmarks/planned_gpu.py --rows=a100_iterations.csv --fit --leave_out=hidden_size

A row is a GPT model on R pipelines of K devices, with the columns `global_batch` (sequences), `micro_batch`,
`hidden_size`, `heads`, `layers`, `sequence_length`, `data_parallel` (R), `pipeline_parallel` (K) and `milliseconds`.
The rows should be vTrain's (Bang et al., MICRO 2024). By its source, vTrain's model has 50,257 tokens, a separate
output layer and dropout. Weights, gradients and activations are in half precision, and Adam also keeps weights and two
slots in float32. Each block is recomputed inside its backward pass::

    embedding + L / K blocks -> L / K blocks -> ... -> L / K blocks + softmax        1F1B; R times; sums at the end

With `--fit` the achieved figures are fitted on one half of the rows, and the errors of both halves are printed.
"""

import csv
import dataclasses
import functools
import pathlib
import statistics
import sys
import zlib
from typing import NamedTuple

if not __package__:  # started by its path
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks.support import common
from lingpipe import schedules
from lingpipe.layers import transformer
from lingpipe.partition import accelerators
from lingpipe.pipeline import layer_sources
from lingpipe.planner import plans, resolution

_ROWS = flags.DEFINE_string('rows', None, 'CSV file of measured steps.', required=True)
_FIT = flags.DEFINE_bool('fit', False, 'Fit the achieved figures on one half of the rows first.')
_FIGURES = flags.DEFINE_list('figures', ['unaligned_efficiency', 'memory_bandwidth', 'start', 'link_bandwidth'],
                             'With --fit: what is fitted, of the fields of `accelerators.Achieved`.')
_LEAVE_OUT = flags.DEFINE_list('leave_out', [], 'With --fit: columns; rows of each of their values are predicted by a '
                               'fit on the others.')
_GROUP_BY = flags.DEFINE_list('group_by', ['pipeline_parallel', 'data_parallel'], 'Columns: a row of the table for each '
                              'of their values.')
_VOCABULARY = flags.DEFINE_integer('vocabulary', 50_257, 'Number of tokens.', lower_bound=1)

_DTYPE = 'float16'
# The float32 weights and Adam's two slots in float32, in units of a weight's two bytes.
_NUM_SLOTS = 6
_DROPOUT = 0.1
_NUM_ROUNDS, _STEP, _LARGEST_STEP = 12, 1e-3, 0.3
_MOST_OF_ROWS = 0.9


class Row(NamedTuple):
    """A measured step; see the module."""

    global_batch: int
    micro_batch: int
    hidden_size: int
    heads: int
    layers: int
    sequence_length: int
    data_parallel: int
    pipeline_parallel: int
    milliseconds: float

    @property
    def is_fitted_on(self):
        """Whether it is in the half that figures are fitted on, by its settings alone."""
        return zlib.crc32(repr(self[:-1]).encode()) % 2 == 0


def read_rows(path):
    """Return the list of `Row` of a CSV file; columns that are not known are left out.

    Raises:
        ValueError: a column is missing, or sizes do not divide.
    """
    rows = []
    with open(path, newline='', encoding='utf-8') as file:
        for number, fields in enumerate(csv.DictReader(file), start=2):
            missing = [column for column in Row._fields if not fields.get(column)]
            if missing:
                raise ValueError(f'{path}, line {number}, lacks {", ".join(missing)}. Give all of '
                                 f'{", ".join(Row._fields)}.')
            row = Row(*(int(fields[column]) for column in Row._fields[:-1]), float(fields['milliseconds']))
            if row.global_batch % (row.micro_batch * row.data_parallel) or row.layers % row.pipeline_parallel:
                raise ValueError(f'{path}, line {number}: {row} does not divide evenly. micro_batch x data_parallel '
                                 'must divide global_batch, and pipeline_parallel the layers.')
            rows.append(row)
    return rows


class _Model(layer_sources.LayersOfParams):
    """The layers of the rows of one model, which are traced once for each size of a micro-batch.

    Args:
        layer_params: list of the layers' params.
        length: tokens of a sequence.
    """

    def __init__(self, layer_params, length):
        super().__init__(layer_params, _DTYPE)
        self._length = length

    def analyses(self, input_specs):
        return self._one_sequence

    @functools.cached_property
    def _one_sequence(self):
        return super().analyses(tf.TensorSpec([1, self._length], tf.int32))

    memories = functools.cache(layer_sources.LayersOfParams.memories)
    kernels = functools.cache(layer_sources.LayersOfParams.kernels)


@functools.cache
def _model(hidden_size, heads, num_layers, length, vocabulary):
    return _Model(transformer.transformer_lm_layers(
        num_layers, vocabulary, hidden_size, 4 * hidden_size, heads, positions='learned', max_length=length,
        input_dropout_prob=_DROPOUT, residual_dropout_prob=_DROPOUT, atten_dropout_prob=_DROPOUT), length)


class _Recomputing(resolution.LayerStack):
    """Blocks that keep their inputs for every micro-batch in flight, and run again inside of their backward passes.

    LingPipe's recompute='layer' keeps the inputs of a partition alone.
    """

    def least_times(self, micro_batch_size, accelerator, dtype):
        return self._with_recomputation(super().least_times(micro_batch_size, accelerator, dtype))

    def achieved_times(self, micro_batch_size, accelerator, achieved):
        return self._with_recomputation(super().achieved_times(micro_batch_size, accelerator, achieved))

    def _with_recomputation(self, times):
        return [time._replace(backward_seconds=time.backward_seconds + time.forward_seconds)
                if layer.kind == 'TransformerBlock' else time for layer, time in zip(self.analyses, times)]


def make_plan(row, vocabulary):
    """Plan a row on A100s, with equally many blocks on each device.

    Args:
        row: `Row`.
        vocabulary: number of tokens.

    Returns:
        `Plan`.
    """
    batch_size, num_stages = row.global_batch // row.data_parallel, row.pipeline_parallel
    source = _model(row.hidden_size, row.heads, row.layers, row.sequence_length, vocabulary)
    stack = _Recomputing(
        source, tf.TensorSpec([batch_size, row.sequence_length], tf.int32), [row.micro_batch])
    ends = [2 + row.layers * (stage + 1) // num_stages for stage in range(num_stages)]
    ends[-1] += 1
    setting = plans.Setting(
        stack, accelerators.find('a100'), None, _NUM_SLOTS, _DTYPE, num_replicas=row.data_parallel)
    schedule = schedules.make_schedule('1f1b', num_stages, batch_size // row.micro_batch)
    return plans.make_plan(setting, schedule, 'none', ends)


def about(plan, achieved):
    """Return the milliseconds that a plan takes on A100s that reach other figures."""
    accelerator = plan.setting.accelerator._replace(achieved=achieved)
    return 1e3 * dataclasses.replace(plan, setting=dataclasses.replace(plan.setting, accelerator=accelerator)).about_time


def fit(rows, row_plans, start):
    """Fit figures so that the squared logarithms of predicted over measured get least, by Gauss's and Newton's method.

    Args:
        rows: list of `Row`.
        row_plans: list of their `Plan`s.
        start: `Achieved` to begin with; what is not in --figures stays.

    Returns:
        `Achieved`.
    """
    measured = np.array([row.milliseconds for row in rows])
    values = np.log([getattr(start, figure) for figure in _FIGURES.value])

    def at(values):
        return start._replace(**dict(zip(_FIGURES.value, np.exp(values).tolist())))

    def residuals(values):
        return np.log([about(plan, at(values)) for plan in row_plans] / measured)

    for _ in range(_NUM_ROUNDS):
        found = residuals(values)
        slopes = np.stack([(residuals(values + _STEP * direction) - found) / _STEP for direction in np.eye(len(values))])
        step = np.linalg.lstsq(slopes.T, -found, rcond=None)[0]
        values = values + np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
    return at(values)


def errors(rows, row_plans, achieved):
    """Return the array of predicted over measured milliseconds, less 1."""
    return np.array([about(plan, achieved) / row.milliseconds - 1 for row, plan in zip(rows, row_plans)])


def _table(rows, row_plans, found):
    least = np.array([1e3 * plan.step_time / row.milliseconds for row, plan in zip(rows, row_plans)])
    columns = _GROUP_BY.value
    cells = [[*value, *_cells(found[own], least[own])] for value, own in _groups(rows, columns)]
    cells.append([*['all'] * len(columns), *_cells(found, least)])
    return common.Table(
        [*columns, 'rows', 'mean absolute error', 'mean error', 'largest', 'lower bound / measured'], cells)


def _groups(rows, columns):
    """Return pairs of the values of some columns and the list of the indices of the rows that have them."""
    values = [tuple(getattr(row, column) for column in columns) for row in rows]
    return [(value, [index for index, each in enumerate(values) if each == value]) for value in sorted(set(values))]


def _cells(found, least):
    return [len(found), f'{np.mean(np.abs(found)):.1%}', f'{np.mean(found):+.1%}', f'{np.max(np.abs(found)):.1%}',
            f'{statistics.fmean(least):.2f}']


def _summary(name, found):
    return (f'{name}: mean absolute error {np.mean(np.abs(found)):.2%} of {len(found)} rows, '
            f'{_MOST_OF_ROWS:.0%} of them within {np.quantile(np.abs(found), _MOST_OF_ROWS):.1%}')


def _fitted(rows, row_plans, start):
    """Return figures that were fitted on one half, and paragraphs."""
    halves = [[index for index, row in enumerate(rows) if row.is_fitted_on == is_fitted] for is_fitted in (True, False)]
    if not all(halves):
        raise app.UsageError(f'--fit: all {len(rows)} rows fall into one of two halves. Give more rows.')
    achieved = fit(*_only(halves[0], rows, row_plans), start)
    texts = [', '.join(f'{figure}={getattr(achieved, figure):.3g}' for figure in _FIGURES.value)]
    for name, half in zip(('Fitted on', 'Never fitted on'), halves):
        some = _only(half, rows, row_plans)
        found = errors(*some, achieved)
        texts += [_summary(name, found), _table(*some, found)]
    return achieved, texts


def _left_out(rows, row_plans, columns, start):
    """Return a table of the errors on each value of some columns, by a fit on the rows of other values."""
    cells = []
    for value, own in _groups(rows, columns):
        others = [index for index in range(len(rows)) if index not in own]
        achieved = fit(*_only(others, rows, row_plans), start)
        found = errors(*_only(own, rows, row_plans), achieved)
        cells.append([*value, *_cells(found, [0.0])[:-1]])
    return common.Table([*columns, 'rows', 'mean absolute error', 'mean error', 'largest'], cells)


def _only(indices, *lists):
    return [[each[index] for index in indices] for each in lists]


def main(unused_argv):
    rows = read_rows(_ROWS.value)
    row_plans = [make_plan(row, _VOCABULARY.value) for row in rows]
    achieved, texts = accelerators.find('a100').achieved, []
    if _FIT.value:
        achieved, texts = _fitted(rows, row_plans, achieved)
        if _LEAVE_OUT.value:
            texts.append(_left_out(rows, row_plans, _LEAVE_OUT.value, achieved))
    found = errors(rows, row_plans, achieved)
    common.report(*texts, _table(rows, row_plans, found), _summary('All', found))


if __name__ == '__main__':
    app.run(main)
