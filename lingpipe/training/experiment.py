"""Building what the params of an experiment describe: the input, and the task on its devices."""

import keras
import tensorflow as tf


def build_input(input_params, random_seed=0):
    """Instantiates an input, with the training's seed where it has none of its own.

    Args:
        input_params: InstantiableParams of an input.
        random_seed: `train.random_seed`.
    """
    p = input_params.Copy()
    if 'seed' in p and p.seed is None:
        p.seed = random_seed
    return p.Instantiate()


def build_task(params, input_shape, devices=None):
    """Instantiates the task and creates its weights on the devices of their partitions.

    Args:
        params: the experiment's Params, with `task` and `train`.
        input_shape: shape `[batch, ...]` of the input.
        devices: list of device names, one a partition, for params that name none.

    Returns:
        A `BaseTask` whose body is built.
    """
    keras.utils.set_random_seed(params.train.random_seed)
    p = params.task.Copy()
    if p.body.random_seed is None:
        p.body.random_seed = params.train.random_seed
    p.body.devices = p.body.devices or devices
    task = p.Instantiate()
    task.body.build_from_specs(tf.TensorSpec(input_shape, tf.float32))
    return task
