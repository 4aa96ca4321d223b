"""One model under a cap on the memory of its process: the plain layers die, the pipeline trains.

    python -m benchmarks.memory.fits_in_memory
"""

from absl import app, flags

from benchmarks.support import common

_CAP_MIB = flags.DEFINE_integer('cap_mib', 300, 'Memory that the process may take beyond what it has after start-up.')
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 64, 'Examples in a batch.')
_IMAGE_SIZE = flags.DEFINE_integer('image_size', 64, 'Height and width of an image.')
_NUM_LAYERS = flags.DEFINE_integer('num_layers', 24, 'Convolutions between stem and head.')
_NUM_MICRO_BATCHES = flags.DEFINE_integer('num_micro_batches', 16, 'Micro-batches of the pipeline.')
_NUM_STEPS = flags.DEFINE_integer('num_steps', 5, 'Training steps.')
_LEARNING_RATE = 0.01


def train(num_partitions, recompute, capped):
    """Trains a stack of convolutions and yields the losses and the allocator's peak in MiB.

    Args:
        num_partitions: K; 0 runs the plain layers on the whole batch.
        recompute: GPipeLayer's field.
        capped: whether the cap holds.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    import lingpipe
    lingpipe.use_virtual_devices(max(num_partitions, 1))
    keras.utils.set_random_seed(0)
    pipe = lingpipe.GPipeLayer.Params().Set(
        name='stack', layers=_layers(), num_partitions=max(num_partitions, 1), recompute=recompute,
        num_micro_batches=_NUM_MICRO_BATCHES.value).Instantiate()
    shape = [_BATCH_SIZE.value, _IMAGE_SIZE.value, _IMAGE_SIZE.value, 3]
    pipe.build(shape)
    generator = np.random.default_rng(0)
    images = tf.constant(generator.normal(size=shape), tf.float32)
    labels = tf.constant(generator.integers(0, 10, shape[0]))
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = [variable.value for variable in pipe.trainable_variables]
    if capped:
        common.cap_memory(_CAP_MIB.value)

    @tf.function(autograph=False)
    def step():
        if num_partitions:
            out = pipe.value_and_grad(loss_fn, images, labels)
            loss, gradients = out.loss, out.gradients
        else:
            with tf.GradientTape() as tape:
                outputs = images
                for layer in pipe.stack:
                    outputs = layer(outputs)
                loss = loss_fn(labels, outputs)
            gradients = tape.gradient(loss, variables)
        for variable, gradient in zip(variables, gradients):
            variable.assign_sub(_LEARNING_RATE * gradient)
        return loss

    losses = []
    peak = common.peak_mib(lambda: losses.extend(float(step()) for _ in range(_NUM_STEPS.value)))
    yield {'losses': losses, 'peak': peak}


def _layers():
    import keras

    from lingpipe import layers
    convolution = {'filters': 16, 'kernel_size': 3, 'padding': 'same', 'activation': 'relu',
                   'kernel_initializer': 'he_normal'}
    return [layers.KerasParams(keras.layers.Conv2D, **convolution) for _ in range(_NUM_LAYERS.value)] + [
        layers.KerasParams(keras.layers.GlobalAveragePooling2D), layers.KerasParams(keras.layers.Dense, units=10)]


def _row(name, num_partitions, recompute, capped):
    with common.Process(train, num_partitions, recompute, capped, environment=common.COUNTING_MEMORY) as process:
        try:
            result = process.next()
        except common.ProcessDied as death:
            return [name, f'{_CAP_MIB.value} MiB' if capped else 'none', f'died ({str(death)[:60]})', '']
    outcome = f'trains: loss {result["losses"][0]:.3f} to {result["losses"][-1]:.3f}'
    return [name, f'{_CAP_MIB.value} MiB' if capped else 'none', outcome, common.mib_text(result['peak'])]


def main(unused_argv):
    pipeline = f'2 partitions, {_NUM_MICRO_BATCHES.value} micro-batches'
    rows = [
        _row('plain layers', 0, 'none', False),
        _row('plain layers', 0, 'none', True),
        _row(f"{pipeline}, recompute='none'", 2, 'none', True),
        _row(f"{pipeline}, recompute='stage'", 2, 'stage', True),
    ]
    common.report(
        common.markdown_table(['configuration', 'cap', 'outcome', 'allocator peak MiB'], rows), common.MEMORY_NOTE)


if __name__ == '__main__':
    app.run(main)
