"""How far the clocks of other machines are from this one's."""

import time

import tensorflow as tf

_NUM_TRIES = 20


class Clocks:
    """Measures clocks when they are first asked for.

    A machine is asked for its time again and again. The answer that came back fastest counts, and is taken for given half way
    between question and answer, as in NTP (RFC 5905, section 8)::

        here    asked ────────────┬──────────── answered        offset = time there - (asked + answered) / 2,
                                  │                             wrong by half of answered - asked at most
        there                time there

    Args:
        ask: function of the name of a device that returns its machine's time in seconds since 1970; None: TensorFlow does.
    """

    def __init__(self, ask=None):
        self._ask = ask or _time_of
        self._offsets = {}

    def offset(self, device):
        """Returns what to subtract from a time that a device tells, to get this machine's; 0 for devices of this machine.

        Args:
            device: name of the device.
        """
        host = _host(device)
        if host not in self._offsets:
            self._offsets[host] = 0.0 if host is None else min(self._try(host) for _ in range(_NUM_TRIES))[1]
        return self._offsets[host]

    def _try(self, host):
        asked = time.time()
        told = self._ask(host)
        answered = time.time()
        return answered - asked, told - (asked + answered) / 2


def _host(device):
    """Returns the CPU that tells the time for a device; None for this machine's."""
    spec = tf.DeviceSpec.from_string(device)
    is_here = spec.job in (None, 'localhost', 'chief')
    return None if is_here else spec.replace(device_type='CPU', device_index=0).to_string()


def _time_of(host):
    with tf.device(host):
        return float(tf.timestamp())
