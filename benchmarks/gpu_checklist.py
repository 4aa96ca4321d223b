"""All checks for a machine with GPUs in one command; without GPUs the same list runs on virtual CPU devices.

    python -m benchmarks.gpu_checklist
    python -m benchmarks.gpu_checklist --checks=equality,sums --num_blocks=2 --width=64

The checks run one after the other in separate processes on `--num_devices` devices: GPUs, or parts of the first GPU if
there are fewer GPUs. A check that fails shows why and does not stop the others; the exit code is then 1. Each check
names what it left out on this machine, with the reason.
"""

import statistics
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks.support import common, models
from lingpipe.devices import collectives, device_kinds, variable_placement
from lingpipe.layers import batch_normalization
from lingpipe.layers.keras_params import KerasParams

_NUM_DEVICES = flags.DEFINE_integer('num_devices', 2, 'Devices K of the pipelines.', lower_bound=1)
_NUM_STEPS = flags.DEFINE_integer('num_steps', 5, 'Measured steps of each; medians count.', lower_bound=1)
_PART_MIB = flags.DEFINE_integer('part_mib', 4096, 'Memory of each part, where one GPU is cut into several.')

# Relative to the largest gradient: float32 on CPUs; GPUs multiply in TF32 from A100 on.
_TOLERANCE = {'CPU': 1e-4, 'GPU': 5e-3}
_SETTINGS = [('gpipe', 'none'), ('gpipe', 'stage'), ('gpipe', 'layer'), ('1f1b', 'none'), ('zb_h1', 'none')]
_NUM_REPLICAS = 2
_SUM_BYTES = 64 * 2**20


def equality():
    """Compare gradients of three schedules, recomputations and replicas with gradients on one device.

    Yields:
        Pair of whether they are equal, and the largest difference.
    """
    devices = _devices()
    problem = models.MODELS['decoder']()
    plain = models.build_pipe(problem, devices=devices[:1])
    expected = _plain_gradients(problem, plain)
    settings = [{'num_partitions': len(devices), 'devices': devices, 'schedule': schedule, 'recompute': recompute}
                for schedule, recompute in _SETTINGS]
    if len(devices) >= _NUM_REPLICAS:
        num_micro_batches = max(1, problem.num_micro_batches // _NUM_REPLICAS)
        settings.append({'num_micro_batches': num_micro_batches, **_replicas(devices)})
    worst = max(_difference(_gradients(problem, models.build_pipe(problem, **fields)), expected) for fields in settings)
    yield worst <= _tolerance(), (f'{len(settings)} settings, largest difference {worst:.1e}'
                                  f'{_left_out_of_replicas(devices)}')


def group_statistics():
    """Gradients of batch norm over a group of replicas against those of all its rows on one device.

    Yields:
        As `equality`; with one device nothing is asserted.
    """
    devices = _devices()
    if len(devices) < _NUM_REPLICAS:
        yield True, f'nothing{_left_out_of_replicas(devices)}'
    problem = _normed_problem()
    expected = _plain_gradients(problem, models.build_pipe(problem, devices=devices[:1]))
    pipe = models.build_pipe(problem, **_replicas(devices))
    worst = _difference(_gradients(problem, pipe), expected)
    yield worst <= _tolerance(), (f'{_NUM_REPLICAS} replicas of {len(pipe.stages)} partitions, largest difference '
                                  f'{worst:.1e}{_left_out_of_replicas(devices)}')


def compiled_stages():
    """Gradients and seconds of stages that XLA compiles, against those that it does not.

    Yields:
        As `equality`.
    """
    devices = _devices()
    problem = models.MODELS['decoder']()
    found, seconds = [], []
    for jit_compile in (False, True):
        pipe = models.build_pipe(problem, num_partitions=len(devices), devices=devices, jit_compile=jit_compile)
        found.append(_gradients(problem, pipe))
        seconds.append(_seconds(models.pipeline_step(problem, pipe), problem))
    worst = _difference(*found)
    yield worst <= _tolerance(), (f'step {seconds[1]:.4f} s, without XLA {seconds[0]:.4f} s, largest difference '
                                  f'{worst:.1e}')


def step_time():
    """Seconds of a pipeline's step against those of the whole model on one of the devices.

    Yields:
        As `equality`; nothing is asserted of the times.
    """
    devices = _devices()
    problem = models.MODELS['decoder']()
    plain = models.build_pipe(problem, devices=devices[:1])
    pipe = models.build_pipe(problem, num_partitions=len(devices), devices=devices, schedule='1f1b')
    with tf.device(devices[0]):
        alone = _seconds(models.plain_step(problem, plain, 1), problem)
    together = _seconds(models.pipeline_step(problem, pipe), problem)
    yield True, f'{alone:.4f} s on one device, {together:.4f} s on {len(devices)} ({together / alone:.2f} x)'


def sums():
    """Sums of gradients over replicas by every method that the devices have, against NumPy's.

    Yields:
        As `equality`.
    """
    devices = _devices()
    methods, left_out = ['add', 'ring', 'two_dimensional'], ''
    num_gpus = len(tf.config.list_physical_devices('GPU'))
    if num_gpus >= len(devices):
        methods.append('nccl')
    else:
        left_out = f'; left out: nccl, which needs {len(devices)} GPUs and found {num_gpus}'
    values = np.random.default_rng(0).normal(size=[len(devices), _SUM_BYTES // 4]).astype(np.float32)
    parts = []
    for device, value in zip(devices, values):
        with tf.device(device):
            parts.append([tf.identity(value)])
    measured, worst = [], 0.0
    for method in methods:
        total = tf.function(lambda *parts, method=method: collectives.gradient_sums(
            method, list(map(list, parts)), devices, devices[:1])[0], autograph=False)
        worst = max(worst, float(np.max(np.abs(total(*parts).numpy() - values.sum(0)))))
        measured.append(f'{method} {_median_seconds(lambda total=total: total(*parts).numpy()) * 1e3:.1f} ms')
    yield worst < 1e-4, f'{_SUM_BYTES >> 20} MiB: {", ".join(measured)}; largest difference {worst:.1e}{left_out}'


def memory():
    """Peak of a device for each recomputation: the more is recomputed, the less is kept.

    Yields:
        As `equality`; without counters of memory, as on CPUs without oneDNN, nothing is asserted.
    """
    devices = _devices(growing=True)
    left_out = '; left out: memory growth, which parts of a GPU cannot have' if _is_cut(devices) else ''
    problem = models.MODELS['decoder']()
    peaks = []
    for recompute in ('none', 'stage', 'layer'):
        pipe = models.build_pipe(problem, num_partitions=len(devices), devices=devices, recompute=recompute)
        step = models.pipeline_step(problem, pipe)
        step(problem.x, problem.y_true)
        peaks.append(_peak_mib(devices[0], lambda step=step: step(problem.x, problem.y_true).numpy()))
    if None in peaks:
        yield True, 'these devices do not count their memory'
    text = ', '.join(f'{name} {peak:.0f} MiB' for name, peak in zip(('none', 'stage', 'layer'), peaks))
    yield peaks[0] > peaks[1] >= 0.9 * peaks[2], f'peak of the first device: {text}{left_out}'


def half_precision():
    """Loss of some steps in 16 bits against float32: it falls as far, and stays finite.

    Yields:
        As `equality`.
    """
    devices = _devices()
    problem = models.MODELS['decoder']()
    falls = {}
    for policy in ('float32', 'mixed_float16', 'mixed_bfloat16'):
        pipe = models.build_pipe(problem, num_partitions=len(devices), devices=devices, dtype_policy=policy)
        step = models.pipeline_step(problem, pipe)
        losses = [float(step(problem.x, problem.y_true)) for _ in range(20)]
        falls[policy] = losses[0] - losses[-1]
    is_good = all(np.isfinite(fall) and fall > 0.8 * falls['float32'] > 0 for fall in falls.values())
    yield is_good, ', '.join(f'{policy}: loss falls by {fall:.4f}' for policy, fall in falls.items())


CHECKS = {
    'equality': equality, 'group_statistics': group_statistics, 'compiled_stages': compiled_stages,
    'step_time': step_time, 'sums': sums, 'memory': memory, 'half_precision': half_precision}
_CHECKS = flags.DEFINE_list('checks', list(CHECKS), f'Checks to run, of {", ".join(CHECKS)}.')


def _devices(growing=False):
    """Set up K devices in this process, before TensorFlow does anything else, and return their names."""
    count, gpus = _NUM_DEVICES.value, tf.config.list_physical_devices('GPU')
    if not gpus:
        device_kinds.use_virtual_devices(count)
        return device_kinds.stage_devices(count, 'CPU')
    if len(gpus) < count:
        part = tf.config.LogicalDeviceConfiguration(memory_limit=_PART_MIB.value)
        tf.config.set_logical_device_configuration(gpus[0], [part] * count)
    elif growing:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    return device_kinds.stage_devices(count, 'GPU')


def _is_cut(devices):
    """Return whether the devices are parts of one GPU."""
    return 0 < len(tf.config.list_physical_devices('GPU')) < len(devices)


def _replicas(devices):
    """Return the fields of replicas, each a pipeline over an equal part of the devices."""
    num_partitions = len(devices) // _NUM_REPLICAS
    return {'num_replicas': _NUM_REPLICAS, 'num_partitions': num_partitions,
            'devices': devices[:_NUM_REPLICAS * num_partitions]}


def _left_out_of_replicas(devices):
    if len(devices) < _NUM_REPLICAS:
        return f'; left out: replicas, which need --num_devices={_NUM_REPLICAS} at least'
    if len(devices) < 2 * _NUM_REPLICAS:
        return f'; left out: replicas of several partitions, which need --num_devices={2 * _NUM_REPLICAS} at least'
    return ''


def _normed_problem():
    """Two convolutions, each with batch norm over a group of all replicas; each replica has one micro-batch."""
    layers, shape = keras.layers, [8 * _NUM_REPLICAS, 16, 16, 3]
    parts = [layer for _ in range(2) for layer in (
        KerasParams(layers.Conv2D, filters=16, kernel_size=3),
        KerasParams(batch_normalization.BatchNormalization, group_size=_NUM_REPLICAS),
        KerasParams(layers.Activation, activation='relu'))]
    head = [KerasParams(layers.GlobalAveragePooling2D), KerasParams(layers.Dense, units=10)]
    return models.Problem(
        [*parts, *head], tf.random.stateless_normal(shape, [1, 1]),
        tf.random.stateless_uniform(shape[:1], [1, 2], 0, 10, tf.int32),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None), num_micro_batches=1)


def _tolerance():
    return _TOLERANCE['GPU' if tf.config.list_physical_devices('GPU') else 'CPU']


def _gradients(problem, pipe):
    @tf.function(autograph=False)
    def gradients(x, y_true):
        return pipe.value_and_grad(problem.loss_fn, x, y_true).gradients

    return [gradient.numpy() for gradient in gradients(problem.x, problem.y_true)]


def _plain_gradients(problem, pipe):
    weights = [weight.value for weight in pipe.trainable_variables]
    with tf.device(variable_placement.device_of(pipe.trainable_variables[0])), tf.GradientTape() as tape:
        x = problem.x
        for layer in pipe.stack:
            x = layer(x, training=True)
        loss = tf.reduce_mean(problem.loss_fn(problem.y_true, x))
    return [tf.convert_to_tensor(gradient).numpy() for gradient in tape.gradient(loss, weights)]


def _difference(found, expected):
    """Relative to the largest gradient of all: that of a bias before a softmax over keys, say, is 0 in truth."""
    largest = max(float(np.max(np.abs(gradient))) for gradient in expected)
    return max(float(np.max(np.abs(one - other))) for one, other in zip(found, expected)) / largest


def _seconds(step, problem):
    step(problem.x, problem.y_true).numpy()
    return _median_seconds(lambda: step(problem.x, problem.y_true).numpy())


def _median_seconds(function):
    taken = []
    for _ in range(_NUM_STEPS.value):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _peak_mib(device, function):
    """Return MiB, or None where the device does not count."""
    name = ':'.join(device.rsplit(':', 2)[-2:])
    try:
        tf.config.experimental.reset_memory_stats(name)
    except ValueError:
        return None
    function()
    return tf.config.experimental.get_memory_info(name)['peak'] / 2**20


def _run(name):
    """Print the result of a check as soon as it is there, and return its row of the table."""
    try:
        with common.Process(CHECKS[name]) as process:
            is_good, text = process.next()
    except common.ProcessDied as error:
        is_good, text = False, str(error)
    print(f'{name}: {"passed" if is_good else "FAILED"}', flush=True)
    return [name, 'passed' if is_good else 'FAILED', text]


def main(unused_argv):
    unknown = set(_CHECKS.value) - set(CHECKS)
    if unknown:
        raise app.UsageError(f'--checks={",".join(sorted(unknown))} is unknown. Choose of {", ".join(CHECKS)}.')
    gpus = tf.config.list_physical_devices('GPU')
    where = f'{len(gpus)} GPUs' if gpus else 'No GPU was found: the list runs on virtual CPU devices'
    rows = [_run(name) for name in _CHECKS.value]
    common.report(common.Table(['check', 'result', 'what was found'], rows),
                  f'{where}; {_NUM_DEVICES.value} devices in each check, Keras {keras.__version__}.')
    sys.exit(any(result != 'passed' for _, result, _ in rows))


if __name__ == '__main__':
    app.run(main)
