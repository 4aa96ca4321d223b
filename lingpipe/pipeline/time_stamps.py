"""Reading the clock inside a graph without ordering what runs on different devices."""

import tensorflow as tf


class TimeStamps:
    """Makes operations that read the clock.

    `tf.timestamp` is stateful, and a `tf.function` runs stateful operations in program order: stamps would let the devices
    work one after the other. So each stamp is a function of its own, called by a stateless operation, and what it waits for
    are its arguments.
    """

    def __init__(self):
        self._functions = {}

    def when_ready(self, tensors):
        """Lays out a stamp in the current graph, on the current device.

        Args:
            tensors: what the stamp waits for, at least one tensor.

        Returns:
            Scalar float64, seconds since 1970.
        """
        dtypes = tuple(tensor.dtype for tensor in tensors)
        if dtypes not in self._functions:
            self._functions[dtypes] = _stamp_function(dtypes)
        stamp, = tf.raw_ops.PartitionedCall(args=tensors, Tout=[tf.float64], f=self._functions[dtypes])
        stamp.set_shape([])
        return stamp

    def when_computed(self, tensor, device):
        """Lays out a stamp that waits until a device has computed a tensor.

        An accelerator's operations count as done when they are queued. Only a value that the host has been given is certain
        to have been computed, so the host reads the clock there.

        Args:
            tensor: result of the work to wait for.
            device: name of the device that computes it.

        Returns:
            Scalar float64, seconds since 1970.
        """
        with tf.device(device):
            element = tf.reshape(tensor, [-1])[:1]
        with tf.device(_clock_of(device)):
            return self.when_ready([element])


def _stamp_function(dtypes):
    with tf.init_scope():
        function = tf.function(
            lambda *unused: tf.timestamp(), autograph=False, experimental_attributes={'_noinline': True})
        return function.get_concrete_function(*[tf.TensorSpec(None, dtype) for dtype in dtypes])


def _clock_of(device):
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type == 'CPU':
        return device
    return spec.replace(device_type='CPU', device_index=0).to_string()
