"""Building what the params of an experiment describe: the input, and the task on its devices."""

import keras

from lingpipe.training import optimizer_slots


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


def build_task(params, input_spec, devices=None, logdir=None):
    """Instantiates the task and creates its weights on the devices of their partitions.

    Args:
        params: the experiment's Params, with `task` and `train`.
        input_spec: nest of `tf.TensorSpec` `[batch, ...]` of the input.
        devices: list of device names, one a partition, for params that name none.
        logdir: folder that keeps measured times of layers, for params that name none; None: none are kept.

    Returns:
        A `BaseTask` whose body is built.
    """
    p = params.task.Copy().Set(body=body_params(params))
    p.body.devices = p.body.devices or devices
    p.body.profile_dir = p.body.profile_dir or logdir
    keras.utils.set_random_seed(params.train.random_seed)
    task = p.Instantiate()
    task.body.build_from_specs(input_spec)
    return task


def body_params(params):
    """Fills in what the body's params leave open: the seed, the precision, and for a memory limit the optimizer's slots.

    Args:
        params: the experiment's Params, with `task` and `train`.

    Returns:
        A copy of the body's Params.
    """
    p = params.task.body.Copy()
    if p.random_seed is None:
        p.random_seed = params.train.random_seed
    if p.memory_limit is not None and p.num_optimizer_slots is None:
        p.num_optimizer_slots = optimizer_slots.num_slots(params.train)
    p.dtype_policy = p.dtype_policy or params.task.dtype_policy
    return p


def evaluation_params(params):
    """Returns a copy of an experiment's Params for evaluation alone.

    Evaluation needs no gradients, slots or waiting activations, so the limit on the memory of training does not count, and
    nothing is measured, which a training on the same machine would disturb and be disturbed by.
    """
    params = params.Copy()
    body = params.task.body.Set(memory_limit=None)
    if body.partition_by == 'time':
        body.partition_by = 'flops'
    return params
