"""What each optimisation of the image input is worth: images/s alone, together, without each, and over the number of threads.

    python benchmarks/input_pipeline.py --pictures=docs/images

Real photographs, cut and resized to the size of ImageNet's, are written as JPEG into TFRecord files of a temporary folder, and
read with the augmentation of ResNet-50. The device that takes the batches is made up: it waits for some milliseconds a batch,
as a host does while its accelerator computes.
"""

import itertools
import pathlib
import statistics
import tempfile
import time
from typing import NamedTuple

import bar_chart
import common
import line_chart
import photographs_dataset
from absl import app, flags, logging

from lingpipe.input import image_input

_NUM_IMAGES = flags.DEFINE_integer('num_images', 512, 'Photographs in the data set.', lower_bound=1)
_NUM_FILES = flags.DEFINE_integer('num_files', 8, 'TFRecord files that they are in.', lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 64, 'Images in a batch.', lower_bound=1)
_IMAGE_SIZE = flags.DEFINE_integer('image_size', 224, 'Height and width of the images that come out.', lower_bound=1)
_STEP_MILLISECONDS = flags.DEFINE_float('step_milliseconds', 10.0, 'Time that the device takes for a batch.', lower_bound=0)
_SECONDS = flags.DEFINE_float('seconds', 5.0, 'Seconds of each measurement.')
_WARMUP_SECONDS = flags.DEFINE_float('warmup_seconds', 3.0, 'Seconds before it, in which tf.data tunes itself.')
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'How often all configurations take turns; medians are reported.', lower_bound=1)
_THREADS = flags.DEFINE_list('threads', ['1', '2', '4', '8', '16'], 'Numbers of threads and of parallel calls.')
_PICTURES = flags.DEFINE_string('pictures', None, 'Folder for input_pipeline.png and input_threads.png.')

BASELINE = {'cache': 'none', 'num_parallel_calls': 1, 'prefetch': 0, 'fuse_decode_and_crop': False, 'vectorize': False}
OPTIMISATIONS = {
    'encoded images cached': {'cache': 'encoded'},
    'decode fused with crop': {'fuse_decode_and_crop': True},
    'parallel calls': {'num_parallel_calls': None},
    'prefetch': {'prefetch': None},
    'whole batches': {'vectorize': True},
}
_ALL = BASELINE | {field: value for change in OPTIMISATIONS.values() for field, value in change.items()}


class Result(NamedTuple):
    """What a configuration reaches.

    Attributes:
        images_per_second: images that the device took.
        waiting: part of the time in which it waited for the next batch.
    """

    images_per_second: float
    waiting: float


def configurations():
    """Returns a dictionary from (group, name) to the fields of the input that are measured."""
    alone = {('alone', name): BASELINE | change for name, change in OPTIMISATIONS.items()}
    without = {('all but', name): _ALL | {field: BASELINE[field] for field in change}
               for name, change in OPTIMISATIONS.items()}
    threads = {('threads', int(count)): _ALL | {'num_threads': int(count), 'num_parallel_calls': int(count)}
               for count in _THREADS.value}
    return {
        ('', 'baseline'): BASELINE,
        **alone,
        ('alone', 'decoded images cached'): BASELINE | {'cache': 'decoded'},
        ('', 'all together'): _ALL,
        ('', 'all, decoded images cached'): _ALL | {'cache': 'decoded'},
        ('', 'all, no look for bad records'): _ALL | {'max_bad_records': None},
        **without,
        **threads,
    }


def measure(data_dir, fields):
    """Takes batches for a while.

    Args:
        data_dir: folder with the data set.
        fields: dictionary of fields of `ImageInput`.

    Returns:
        `Result`.
    """
    batches = image_input.ImageInput.Params().Set(
        dataset='photographs', data_dir=data_dir, batch_size=_BATCH_SIZE.value, image_size=_IMAGE_SIZE.value,
        augmentation='resnet', **fields).Instantiate().training_dataset()
    iterator = iter(batches)
    _take(iterator, _WARMUP_SECONDS.value)
    num_batches, seconds, waited = _take(iterator, _SECONDS.value)
    return Result(num_batches * _BATCH_SIZE.value / seconds, waited / seconds)


def _take(iterator, seconds):
    """Returns the number of batches that were taken, and the seconds that passed and that the device waited."""
    start, waited = time.perf_counter(), 0.0
    for count in itertools.count(1):
        asked = time.perf_counter()
        next(iterator)
        waited += time.perf_counter() - asked
        time.sleep(_STEP_MILLISECONDS.value / 1000)
        passed = time.perf_counter() - start
        if passed >= seconds:
            return count, passed, waited


def _measure_all(data_dir):
    found = {key: [] for key in configurations()}
    for _ in range(_ROUNDS.value):
        for key, fields in configurations().items():
            found[key].append(measure(data_dir, fields))
    return {key: Result(*map(statistics.median, zip(*results))) for key, results in found.items()}


def _table(header, found, groups):
    baseline = found['', 'baseline'].images_per_second
    rows = [[f'{group}: {name}' if group in ('alone', 'all but') else name, f'{result.images_per_second:,.0f}',
             f'{result.images_per_second / baseline:.2f}', f'{100 * result.waiting:.0f}']
            for (group, name), result in found.items() if group in groups]
    return common.markdown_table([header, 'images/s', 'x baseline', 'device waits %'], rows)


def _draw(found):
    def bars(group):
        return {str(name): result.images_per_second for (of, name), result in found.items() if of == group}

    folder = pathlib.Path(_PICTURES.value)
    (folder / 'input_pipeline.png').write_bytes(bar_chart.png(
        {'none and all': bars(''), 'one alone': bars('alone'), 'all but one': bars('all but')}, 'images/s'))
    threads = [int(count) for count in _THREADS.value]
    (folder / 'input_threads.png').write_bytes(line_chart.png(
        {'all together': list(bars('threads').values())}, threads, 'threads and parallel calls', 'images/s'))


def main(unused_argv):
    logging.set_verbosity(logging.WARNING)  # TFDS tells about each data set that it opens
    with tempfile.TemporaryDirectory() as data_dir:
        num_bytes = photographs_dataset.prepare(data_dir, _NUM_IMAGES.value, _NUM_FILES.value)
        found = _measure_all(data_dir)
    if _PICTURES.value:
        _draw(found)
    common.report(
        _table('configuration', found, ('', 'alone', 'all but')), _table('threads', found, ('threads',)),
        f'{_NUM_IMAGES.value} photographs of about 500 x 375 pixels and {num_bytes / 1000:.0f} kB, in {_NUM_FILES.value} files; '
        f'batches of {_BATCH_SIZE.value} at {_IMAGE_SIZE.value} pixels; a step of {_STEP_MILLISECONDS.value:g} ms; '
        f'medians of {_ROUNDS.value} rounds.')


if __name__ == '__main__':
    app.run(main)
