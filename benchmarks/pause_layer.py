"""A layer that takes its time on whatever machine of a cluster computes it, without Python and without a processor."""

import common  # noqa: F401
import keras
import tensorflow as tf

FILE_NAME = 'pause_microseconds'


class Pause(keras.layers.Layer):
    """Passes its input on after a while: a step so takes the time of an accelerator that this machine does not have.

    How long is in a file of the folder that the process runs in, so that one worker of several can be slower.
    """

    def call(self, inputs):
        nothing = tf.strings.substr(tf.strings.as_string(tf.reshape(inputs, [-1])[0]), 0, 0)  # else the file would be read elsewhere
        microseconds = tf.strings.to_number(tf.io.read_file(tf.strings.join([FILE_NAME, nothing])), tf.int64)
        return inputs + tf.zeros_like(inputs) * tf.cast(_slept(microseconds), inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape


def _slept(microseconds):
    """Sleeps in an element of a dataset, for which TensorFlow has an operation."""
    one = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64))
    sleeping = tf.raw_ops.SleepDataset(
        input_dataset=one._variant_tensor, sleep_microseconds=microseconds, output_types=[tf.int64], output_shapes=[[]])
    return tf.raw_ops.DatasetToSingleElement(dataset=sleeping, output_types=[tf.int64], output_shapes=[[]])[0]
