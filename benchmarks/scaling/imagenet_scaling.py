"""Training time of ResNet-50 on ImageNet from 8 to 2,048 cores of TPU v3, by arithmetic, beside the published times.

    python -m benchmarks.scaling.imagenet_scaling --picture=docs/images/imagenet_scaling.png

One published time says which part of its peak a core reaches; all others are predicted with that:

    seconds = epochs * images / batch * (images a core * FLOPs an image / (peak * utilisation) + seconds to sum the
    gradients)

Published: Google's results of MLPerf Training 0.6, ResNet-50, by their logs; the middle of their range. Nothing is run
    here.
"""

import math
import pathlib
from typing import NamedTuple

from absl import app, flags

from benchmarks.scaling import reduction_time
from benchmarks.support import common, line_chart
from lingpipe.devices import collectives
from lingpipe.planner import accelerators

_CALIBRATED_ON = flags.DEFINE_integer('calibrated_on', 32, 'Cores of the published row that gives the utilisation.')
_PICTURE = flags.DEFINE_string('picture', None, 'PNG file to draw images a second and core into.')

_NUM_IMAGES = 1_281_167
_CORES_OF_A_CHIP = 2
_GRADIENT_BYTES = 4 * 25_557_032
# 4,089,184,256 multiply-adds forward, of two operations each; the backward pass takes twice as many.
_FLOPS_OF_AN_IMAGE = 3 * 2 * 4_089_184_256
_V3 = accelerators.find('v3')


class Row(NamedTuple):
    """One training.

    Attributes:
        cores: of TPU v3.
        batch: images in a mini-batch.
        epochs: until the target was reached; the middle of what the logs say.
        published: seconds (least, most) of the logs; None where there is none.
    """

    cores: int
    batch: int
    epochs: float
    published: tuple | None


# The logs tell the epochs for 32, 128 and 2,048 cores. 256 to 1,024 have the batch of 2,048, 8 and 64 keep 128 images a
# core: each
# is given the epochs of the row that is nearest to it in its batch.
ROWS = [Row(8, 1024, 62, None), Row(32, 4096, 62, (2529, 2693)), Row(64, 8192, 62, None), Row(
    128, 16384, 64, (673, 714)),
        Row(256, 32768, 74, (389, 469)), Row(512, 32768, 74, (225, 265)), Row(1024, 32768, 74, (130, 142)),
        Row(2048, 32768, 74, (76.5, 81.4))]


def num_steps(row):
    """Returns how many steps a training takes; a float, since the middle of a range need not end with a step."""
    return row.epochs * _NUM_IMAGES / row.batch


def sum_seconds(row):
    """Returns seconds of a step in which the chips sum their gradients, on the most nearly square torus."""
    num_rows, num_columns = collectives.grid_shape(row.cores // _CORES_OF_A_CHIP)
    # The links of a chip serve both of its cores.
    return reduction_time.two_dimensional(_GRADIENT_BYTES, num_rows, num_columns, _V3.link_bandwidth).seconds


def published_seconds(row):
    """Returns the middle of what was published."""
    return sum(row.published) / 2


def utilisation(row):
    """Returns the share of its peak that a core must have reached, had a training been as the model has it.

    Args:
        row: a `Row` that was published.
    """
    seconds = published_seconds(row) / num_steps(row) - sum_seconds(row)
    return row.batch / row.cores * _FLOPS_OF_AN_IMAGE / seconds / _V3.flops


def predicted_seconds(row, share_of_peak):
    """Returns how long a training takes.

    Args:
        row: `Row`.
        share_of_peak: what `utilisation` returned for some row.
    """
    compute = row.batch / row.cores * _FLOPS_OF_AN_IMAGE / (_V3.flops * share_of_peak)
    return num_steps(row) * (compute + sum_seconds(row))


def _cells(row, share_of_peak):
    predicted = predicted_seconds(row, share_of_peak)
    least_to_most, error = '-', '-'
    if row.published:
        least_to_most = '{:,} to {:,}'.format(*row.published)
        error = 'calibrated' if row.cores == _CALIBRATED_ON.value else f'{100 * (predicted / published_seconds(row) - 1):+.1f} %'
    return [f'{row.cores:,}', f'{row.batch:,}', row.batch // row.cores, row.epochs, f'{num_steps(row):,.0f}',
            f'{1000 * sum_seconds(row):.2f}', f'{100 * num_steps(row) * sum_seconds(row) / predicted:.1f}',
            f'{predicted:,.0f}',
            least_to_most, error]


def _calibration():
    rows = {row.cores: row for row in ROWS if row.published}
    if _CALIBRATED_ON.value not in rows:
        raise ValueError(f'--calibrated_on={_CALIBRATED_ON.value} is no published row. Give one of {list(rows)}.')
    return utilisation(rows[_CALIBRATED_ON.value])


def _draw(share_of_peak):
    rows = [row for row in ROWS if row.published]
    seconds = {
        'model': [predicted_seconds(row, share_of_peak) for row in rows], 'MLPerf': list(map(published_seconds, rows))}
    lines = {name: [row.epochs * _NUM_IMAGES / each / row.cores for row, each in zip(rows, column)]
             for name, column in seconds.items()}
    pathlib.Path(_PICTURE.value).write_bytes(line_chart.png(
        lines, [row.cores for row in rows], 'cores of TPU v3', 'images a second and core'))


def main(unused_argv):
    share_of_peak = _calibration()
    if _PICTURE.value:
        _draw(share_of_peak)
    errors = [abs(predicted_seconds(row, share_of_peak) / published_seconds(row) - 1) for row in ROWS
              if row.published and row.cores != _CALIBRATED_ON.value]
    common.report(
        common.markdown_table(
            ['cores', 'batch', 'images a core', 'epochs', 'steps', 'ms to sum', '% of time', 'predicted, s',
             'published, s', 'error'],
            [_cells(row, share_of_peak) for row in ROWS]),
        f'A core reaches {100 * share_of_peak:.1f} % of its peak, by the row of {_CALIBRATED_ON.value} cores. Mean '
        f'error of the others: {100 * math.fsum(errors) / len(errors):.1f} %, greatest {100 * max(errors):.1f} %.')


if __name__ == '__main__':
    app.run(main)
