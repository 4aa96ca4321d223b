"""Runs a program partitioned over CPU devices: `python run_partitioned.py PROGRAM ARGUMENTS RESULTS HLO NUM_DEVICES`.

A process of its own, for jaxlib's interfaces are private and abort when misused. What the TPU's compiler does to a
program, the partitioner, is the same for the CPU.
"""

import sys

import numpy as np
from jaxlib import _jax, xla_client

from lingpipe.tools import tpu_compiler_process


class Abstract:
    """What jaxlib asks an array for."""

    weak_type = False

    def __init__(self, array):
        self.shape, self.dtype, self.ndim, self.size = array.shape, array.dtype, array.ndim, array.size

    def update(self, **unused):
        return self


def compile_for(devices, program):
    from jaxlib.mlir import ir

    with tpu_compiler_process._context():
        module = ir.Module.parse(program)
        tpu_compiler_process._erase_copies(module, ir)
        return devices[0].client.compile_and_load(
            module, executable_devices=_jax.DeviceList(tuple(devices)),
            compile_options=tpu_compiler_process._options(module, devices, True, False, 1))


def cut_dimension(sharding, num_devices):
    """Return the dimension that is cut over the devices, None where all have the whole tensor."""
    dimensions = list(sharding.tile_assignment_dimensions)
    return dimensions.index(num_devices) if num_devices in dimensions else None


def put(array, sharding, devices):
    dimension = cut_dimension(sharding, len(devices))
    parts = [array] * len(devices) if dimension is None else np.split(array, len(devices), dimension)
    return _jax.batched_device_put(
        Abstract(array), xla_client.GSPMDSharding(tuple(devices), sharding), list(map(np.ascontiguousarray, parts)),
        devices,
        enable_x64=True)


def join(parts, sharding):
    dimension = cut_dimension(sharding, len(parts))
    parts = list(map(np.asarray, parts))
    return parts[0] if dimension is None else np.concatenate(parts, dimension)


def main(program_path, arguments_path, results_path, hlo_path, num_devices):
    devices = xla_client.make_cpu_client(num_devices=int(num_devices)).devices()
    with open(program_path, encoding='utf-8') as file:
        executable = compile_for(devices, file.read())
    with open(hlo_path, 'w', encoding='utf-8') as file:
        file.write(executable.hlo_modules()[0].to_string())
    arguments = np.load(arguments_path)
    given = [put(arguments[f'arr_{index}'], sharding, devices)
             for index, sharding in enumerate(executable.get_parameter_shardings())]
    results = executable.execute_sharded(given).disassemble_into_single_device_arrays()
    np.savez(results_path, *map(join, results, executable.get_output_shardings()))


if __name__ == '__main__':
    main(*sys.argv[1:])
