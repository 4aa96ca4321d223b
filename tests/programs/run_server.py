"""A server, or the chief of servers, in a process of its own: the tests start it with a TF_CONFIG."""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '1')

import queue
import sys

import tensorflow as tf

from lingpipe.cluster import answers, cluster_config, server


def lead(config):
    while answers.silent_tasks(config):  # they may start later
        pass
    tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec({'worker': config.jobs['worker']}))
    names = [device.name for device in tf.config.list_logical_devices('CPU')]
    with tf.device(names[-1]):
        print(f'{names[-1]} computes {tf.Variable(2.).assign_add(3.).numpy()}', flush=True)
    if 'until_asked_to_stop' in sys.argv:
        asked = queue.SimpleQueue()
        answers.listen(config, 'worker', asked.put)
        print('listening', flush=True)
        print(f'{asked.get()} asks to stop', flush=True)
    answers.tell_end(config, 3 if 'and_fail' in sys.argv else 0)
    print('told all', flush=True)


if __name__ == '__main__':
    this = cluster_config.read()
    if this.is_chief:
        lead(this)
    else:
        is_replaceable = 'is_replaceable' in sys.argv
        if is_replaceable:
            server._SECONDS_TO_LEAVE = 1
        server.serve(this, num_cpu_devices=2, is_replaceable=is_replaceable)
