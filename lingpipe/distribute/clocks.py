"""How far the clocks of other machines are from this one's."""

import time

import tensorflow as tf

_NUM_TRIES = 20


def offsets(devices):
    """Measures what to subtract from a time that a device tells, to get this machine's.

    A machine is asked for its time again and again. The answer that came back fastest counts, and is taken for given half way
    between question and answer, as in NTP (RFC 5905, section 8)::

        here    asked ────────────┬──────────── answered        offset = time there - (asked + answered) / 2,
                                  │                             wrong by half of answered - asked at most
        there                time there

    Args:
        devices: list of device names.

    Returns:
        List of seconds, one a device; 0 for those of this machine.
    """
    hosts = [_host(device) for device in devices]
    found = {host: _offset(host) for host in set(hosts) - {None}}
    return [found.get(host, 0.0) for host in hosts]


def _host(device):
    """Returns the CPU that tells the time for a device; None for this machine's."""
    spec = tf.DeviceSpec.from_string(device)
    is_here = spec.job in (None, 'localhost', 'chief')
    return None if is_here else spec.replace(device_type='CPU', device_index=0).to_string()


def _offset(host):
    @tf.function(autograph=False)
    def ask():
        with tf.device(host):
            return tf.timestamp()

    ask()
    return min(_try(ask) for _ in range(_NUM_TRIES))[1]


def _try(ask):
    asked = time.time()
    told = float(ask())
    answered = time.time()
    return answered - asked, told - (asked + answered) / 2
