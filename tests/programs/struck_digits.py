"""A tiny model on which signals strike the process that reads a certain batch, or another one, once each.

STRIKE='7 SIGKILL FILE; 9 SIGTERM FILE PID' in the environment: batch 7 of the training ('+7': of this process), which
signal, what is there once it was sent, and perhaps a file with the number of the process to strike.
"""

import os
import pathlib
import signal

import tensorflow as tf
import tiny_digits

from lingpipe import layers, model_registry
from lingpipe.input import image_input, row_order
from lingpipe.layers import batch_normalization


class StruckInput(image_input.ImageInput):
    """Training batches one of which brings a signal."""

    def training_dataset(self, position=0, share=row_order.WHOLE):
        first = position // self.params.batch_size + 1

        def strike(index, batch):
            images, labels, weights = batch
            shape = labels.shape
            labels = tf.numpy_function(_strike, [index + first, index, labels], tf.int32)
            return images, tf.ensure_shape(labels, shape), weights

        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # a batch is read when its step begins
        return super().training_dataset(position, share).enumerate().map(strike).with_options(options)


def _strike(step, index, labels):
    for strike in filter(None, os.environ.get('STRIKE', '').split(';')):
        at, name, file, *pid = strike.split()
        if at in (str(step), f'+{index + 1}') and not pathlib.Path(file).exists():
            pathlib.Path(file).touch()
            os.kill(int(pathlib.Path(*pid).read_text()) if pid else os.getpid(), signal.Signals[name])
    return labels


@model_registry.RegisterSingleTaskModel
class StruckDigits(tiny_digits.TinyDigits):
    """TinyDigits, with everything that workers have to agree on: batch norm of groups of two, dropout, clipping,
    averages."""

    INPUT = StruckInput

    def Task(self):
        p = super().Task()
        p.body.layers[2] = layers.KerasParams(batch_normalization.BatchNormalization, group_size=2, momentum=0.9)
        return p


@model_registry.RegisterSingleTaskModel
class StruckTinyDigits(tiny_digits.TinyDigits):
    """TinyDigits as it is."""

    INPUT = StruckInput


DEFAULT = StruckDigits
