"""The curves and texts that a training or an evaluation wrote."""

import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator


def read(folder):
    """Return {name: list of pairs (step, array)} of a folder of summaries."""
    accumulator = event_accumulator.EventAccumulator(str(folder), {'tensors': 0}).Reload()
    return {name: [(event.step, tf.make_ndarray(event.tensor_proto)) for event in accumulator.Tensors(name)]
            for name in accumulator.Tags()['tensors']}


def curve(folder, name):
    """Return the list of pairs (step, value) of one curve."""
    return [(step, float(value)) for step, value in read(folder)[name]]
