"""Sums tensors over two workers by every method, and prints JSON; or is one of the workers, by TF_CONFIG.

A process of its own, since TensorFlow cannot forget a cluster.
"""

import json

import tensorflow as tf

from lingpipe.cluster import cluster_config, messages, server
from lingpipe.devices import collectives
from lingpipe.placements import pipeline_hosts

SHAPES = [[3, 5], [7], [], [2, 2, 2]]


def parts_of(device, replica):
    with tf.device(device):
        return [tf.random.stateless_normal(shape, [replica, number]) for number, shape in enumerate(SHAPES)]


def sums(method, parts, devices, owners):
    totals = tf.function(lambda: collectives.GradientSum(method)(parts, devices, owners), autograph=False)()
    return [(total.device, total.numpy().tolist()) for total in totals]


def lead(config):
    pipeline_hosts.connect(config)
    devices = [f'/job:worker/replica:0/task:{task}/device:CPU:0' for task in range(2)]
    parts = [parts_of(device, replica) for replica, device in enumerate(devices)]
    owners = [devices[place % 2] for place in range(len(SHAPES))]
    print(json.dumps({
        'owners': owners, 'parts': [[tensor.numpy().tolist() for tensor in tensors] for tensors in parts],
        'sums': {
            method: sums(method, parts, devices, owners) for method in ('auto', 'add', 'ring', 'two_dimensional')}}))
    messages.tell_end(config)


if __name__ == '__main__':
    this = cluster_config.read()
    if this.is_chief:
        lead(this)
    else:
        server.serve(this)
