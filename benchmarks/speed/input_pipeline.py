"""What each optimisation of the image input is worth: images/s alone, together, without each, and over the number of
threads.

    python -m benchmarks.speed.input_pipeline --pictures=docs/images

Real photographs, cut and resized to the size of ImageNet's, are written as JPEG into TFRecord files of a temporary
folder, and read with the augmentation of ResNet-50. The device that takes the batches is mocked: it waits for some
milliseconds a batch, as a host does while its accelerator computes. It takes about nine minutes.

Images/s want a machine that does nothing else. Processor time an image hardly depends on what else runs there.
"""

import itertools
import pathlib
import statistics
import tempfile
import time
from typing import NamedTuple

from absl import app, flags, logging

from benchmarks.speed import photographs_dataset
from benchmarks.support import bar_chart, common, line_chart
from lingpipe.input import image_input

_NUM_IMAGES = flags.DEFINE_integer('num_images', 512, 'Photographs in the data set.', lower_bound=1)
_NUM_FILES = flags.DEFINE_integer('num_files', 8, 'TFRecord files that they are in.', lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 64, 'Images in a batch.', lower_bound=1)
_IMAGE_SIZE = flags.DEFINE_integer('image_size', 224, 'Height and width of the images that come out.', lower_bound=1)
_STEP_MILLISECONDS = flags.DEFINE_float(
    'step_milliseconds', 10.0, 'Time that the device takes for a batch.', lower_bound=0)
_SECONDS = flags.DEFINE_float('seconds', 3.0, 'Seconds of each measurement.')
_WARMUP_SECONDS = flags.DEFINE_float('warmup_seconds', 2.0, 'Seconds before it, in which tf.data tunes itself.')
_ROUNDS = flags.DEFINE_integer(
    'rounds', 3, 'How often all configurations take turns; medians are reported.', lower_bound=1)
_THREADS = flags.DEFINE_list('threads', ['1', '2', '4', '8'], 'Numbers of threads and of parallel calls.')
_PICTURES = flags.DEFINE_string('pictures', None, 'Folder for input_pipeline.png and input_threads.png.')

BASELINE = {'cache': 'none', 'num_parallel_calls': 1, 'prefetch': 0, 'fuse_decode_and_crop': False, 'vectorize': False}
OPTIMISATIONS = {
    'decode fused with crop': {'fuse_decode_and_crop': True},
    'parallel calls': {'num_parallel_calls': None},
    'prefetch': {'prefetch': None},
    'whole batches': {'vectorize': True},
}
CACHES = {'encoded images cached': {'cache': 'encoded'}, 'decoded images cached': {'cache': 'decoded'}}
_NOT_CACHED = BASELINE | {field: value for change in OPTIMISATIONS.values() for field, value in change.items()}


class Result(NamedTuple):
    """What a configuration reaches.

    Attributes:
        images_per_second: images that the device took.
        waiting: part of the time in which it waited for the next batch.
        cpu_milliseconds: processor time of all cores an image.
    """

    images_per_second: float
    waiting: float
    cpu_milliseconds: float


def configurations():
    """Returns a dictionary from (group, name) to the fields of the input that are measured.

    With decoded images in memory nothing is decoded later, so that there is nothing to fuse with the crop.
    """
    found = {('', 'baseline'): BASELINE}
    found |= {('alone', name): BASELINE | change for name, change in (CACHES | OPTIMISATIONS).items()}
    found['', 'all but a cache'] = _NOT_CACHED
    for cache, cached in CACHES.items():
        found['', f'all, {cache}'] = _NOT_CACHED | cached
        found |= {(f'all but, {cache}', name): _NOT_CACHED | cached | {field: BASELINE[field] for field in change}
                  for name, change in OPTIMISATIONS.items()
                  if not (cached['cache'] == 'decoded' and 'fuse_decode_and_crop' in change)}
        found |= {(f'threads, {cache}', int(count)): _NOT_CACHED | cached | {
            'num_threads': int(count), 'num_parallel_calls': int(count)} for count in _THREADS.value}
    encoded = _NOT_CACHED | CACHES['encoded images cached']
    found['other', 'no look for bad records'] = encoded | {'max_bad_records': None}
    found['other', 'bilinear interpolation'] = encoded | {'interpolation': 'bilinear'}
    return found


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
    begin = time.process_time()
    num_batches, seconds, waited = _take(iterator, _SECONDS.value)
    num_images = num_batches * _BATCH_SIZE.value
    return Result(num_images / seconds, waited / seconds, 1000 * (time.process_time() - begin) / num_images)


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
    rows = [[_title(group, name), f'{result.images_per_second:,.0f}', f'{result.images_per_second / baseline:.2f}',
             f'{100 * result.waiting:.0f}', f'{result.cpu_milliseconds:.2f}']
            for (group, name), result in found.items() if group in groups]
    return common.markdown_table([header, 'images/s', 'x baseline', 'device waits %', 'CPU ms an image'], rows)


def _title(group, name):
    if group.startswith('threads'):
        return f'{name}, {group.removeprefix("threads, ")}'
    return f'{group}: {name}' if group else name


def _groups(start):
    """Returns the groups that there are for each cache, from cache to name."""
    return {cache: f'{start}, {cache}' for cache in CACHES}


def _draw(found):
    def bars(group):
        return {str(name): result.images_per_second for (of, name), result in found.items() if of == group}

    folder = pathlib.Path(_PICTURES.value)
    but = {f'all but one, {cache}': bars(group) for cache, group in _groups('all but').items()}
    (folder / 'input_pipeline.png').write_bytes(bar_chart.png(
        {'none and all': bars(''), 'one alone': bars('alone'), **but}, 'images/s'))
    threads = [int(count) for count in _THREADS.value]
    (folder / 'input_threads.png').write_bytes(line_chart.png(
        {cache.split()[0]: list(bars(group).values()) for cache, group in _groups('threads').items()}, threads,
        'threads and parallel calls', 'images/s'))


def main(unused_argv):
    logging.set_verbosity(logging.WARNING)  # TFDS tells about each data set that it opens
    with tempfile.TemporaryDirectory() as data_dir:
        num_bytes = photographs_dataset.prepare(data_dir, _NUM_IMAGES.value, _NUM_FILES.value)
        found = _measure_all(data_dir)
    if _PICTURES.value:
        _draw(found)
    common.report(
        _table('configuration', found, ('', 'alone', *_groups('all but').values(), 'other')),
        _table('threads', found, _groups('threads').values()),
        f'{_NUM_IMAGES.value} photographs of about 500 x 375 pixels and {num_bytes / 1000:.0f} kB, in '
        f'{_NUM_FILES.value} files; batches of {_BATCH_SIZE.value} at {_IMAGE_SIZE.value} pixels; a step of '
        f'{_STEP_MILLISECONDS.value:g} ms; medians of {_ROUNDS.value} rounds.')


if __name__ == '__main__':
    app.run(main)
