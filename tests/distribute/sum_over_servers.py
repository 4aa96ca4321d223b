"""Sums tensors over two server processes by every method: `python -m tests.distribute.sum_over_servers`, prints JSON.

A process of its own, since TensorFlow cannot forget a cluster. The folder of the benchmarks is on its path.
"""

import json

import server_processes
import tensorflow as tf

from lingpipe.distribute import gradient_sums

SHAPES = [[3, 5], [7], [], [2, 2, 2]]


def parts_of(device, replica):
    with tf.device(device):
        return [tf.random.stateless_normal(shape, [replica, number]) for number, shape in enumerate(SHAPES)]


def sums(method, parts, devices, owners):
    totals = tf.function(lambda: gradient_sums.GradientSum(method)(parts, devices, owners), autograph=False)()
    return [(total.device, total.numpy().tolist()) for total in totals]


def main():
    with server_processes.devices(2) as devices:
        parts = [parts_of(device, replica) for replica, device in enumerate(devices)]
        owners = [devices[place % 2] for place in range(len(SHAPES))]
        print(json.dumps({
            'owners': owners, 'parts': [[tensor.numpy().tolist() for tensor in tensors] for tensors in parts],
            'sums': {method: sums(method, parts, devices, owners) for method in ('auto', 'add', 'ring', 'two_dimensional')}}))


if __name__ == '__main__':
    main()
