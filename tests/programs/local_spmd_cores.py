"""One replica of `SpmdCores` on CPU devices: a single device runs what all cores would, and slices are joined and cut
by hand."""

import functools

import tensorflow as tf

from lingpipe.input import row_order
from lingpipe.placements import spmd_cores
from lingpipe.spmd import spmd_step


class LocalSpmdCores(spmd_cores.SpmdCores):
    is_partitioned, count = False, 1

    def __init__(self, num_stages):
        self.num_stages = num_stages
        self.grid = [[f'CPU:{index + 1}' for index in range(num_stages)]]
        self.devices = ['CPU:0'] * num_stages

    def run(self, function, arguments):
        return function(*arguments)

    def distribute(self, batches):
        return iter(batches(row_order.WHOLE))

    def join(self, slices, dimension):
        return slices[0], dimension

    def read(self, handle, dtype):
        slices, dimension = handle
        return slices[0].read_value() if dimension is None else tf.concat([each.read_value() for each in slices], dimension)

    def assign(self, handle, value):
        slices, dimension = handle
        parts = [value] * len(slices) if dimension is None else tf.split(value, len(slices), dimension)
        for variable, part in zip(slices, parts):
            variable.assign(part)

    def sum(self, device, tensors):
        return tensors

    def index_on(self, device):
        return 0


def compile_steps(monkeypatch):
    """Have XLA compile each `SpmdStep`, as it would the whole program."""
    call = spmd_step.SpmdStep.__call__

    def compiled(self, *arguments):
        return tf.function(functools.partial(call, self), jit_compile=True, autograph=False)(*arguments)

    monkeypatch.setattr(spmd_step.SpmdStep, '__call__', compiled)
