"""The curves that a training or an evaluation drew."""

import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator


def curve(folder, name):
    """Returns the list of pairs (step, value) of one curve of a folder of summaries."""
    accumulator = event_accumulator.EventAccumulator(str(folder), {'tensors': 0})
    accumulator.Reload()
    return [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in accumulator.Tensors(name)]
