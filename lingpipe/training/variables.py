"""Names for a task's variables that depend on the layers only: not on partitions, devices or what was built before."""

import tensorflow as tf


def model_variables(body):
    """Lists the weights and moving statistics of a built pipeline.

    Args:
        body: a built `GPipeLayer`.

    Returns:
        Dictionary from '<layer>/<position in the layer>_<variable>' to Keras variable, in model order; what layers share goes
        by the first of them.
    """
    named = {}
    for layer in body.stack:
        for position, variable in enumerate(layer.weights):
            named.setdefault(id(variable), (f'{layer.name}/{position:03d}_{variable.name}', variable))
    return dict(named.values())


def nested(named):
    """Turns names with slashes into nested dictionaries, the form that TensorFlow's checkpoints track.

    Args:
        named: dictionary from name to Keras variable or `tf.Variable`.

    Returns:
        Nested dictionary of `tf.Variable`.
    """
    tree = {}
    for name, variable in named.items():
        *folders, leaf = name.split('/')
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[leaf] = variable if isinstance(variable, tf.Variable) else variable.value
    return tree
