"""Runs a program on replicas of partitioned CPU devices: `python -m tests.programs.run_replicas PROGRAM ARGUMENTS
RESULTS R K`.

A process of its own, as tests/programs/run_partitioned.py, for the same reasons. Arguments and results are arrays `[R,
...]`, one entry a replica, which all K devices of the replica have whole: jaxlib knows no arrays that are cut within
replicas. The program cuts them.
"""

import sys

import numpy as np
from jaxlib import _jax, xla_client

from lingpipe.tools import tpu_compiler_process
from tests.programs import run_partitioned


def module_and_options(devices, program, num_replicas):
    from jaxlib.mlir import ir

    module = ir.Module.parse(program)
    tpu_compiler_process._erase_copies(module, ir)
    return module, tpu_compiler_process._options(module, devices, True, True, num_replicas)


def compile_for(devices, program, num_replicas):
    with tpu_compiler_process._context():
        module, options = module_and_options(devices, program, num_replicas)
        return devices[0].client.compile_and_load(
            module, executable_devices=_jax.DeviceList(tuple(devices)), compile_options=options)


def put(array, devices):
    """To jaxlib it is an array that the devices share out: of one that all have whole it would send the first copy to
    all."""
    parts = list(map(np.atleast_1d, np.repeat(array, len(devices) // len(array), axis=0)))
    sharding = xla_client.OpSharding()
    sharding.type = xla_client.OpSharding.Type.OTHER
    sharding.tile_assignment_dimensions = [len(devices)] + [1] * (parts[0].ndim - 1)
    sharding.tile_assignment_devices = list(range(len(devices)))
    return _jax.batched_device_put(
        run_partitioned.Abstract(np.concatenate(parts)), xla_client.GSPMDSharding(tuple(devices), sharding), parts,
        devices,
        enable_x64=True)


def main(program_path, arguments_path, results_path, num_replicas, num_partitions):
    num_replicas, num_partitions = int(num_replicas), int(num_partitions)
    devices = xla_client.make_cpu_client(num_devices=num_replicas * num_partitions).devices()
    with open(program_path, encoding='utf-8') as file:
        executable = compile_for(devices, file.read(), num_replicas)
    with np.load(arguments_path) as arguments:
        given = [put(arguments[f'arr_{index}'], devices) for index in range(len(arguments))]
    results = executable.execute_sharded(given).disassemble_into_single_device_arrays()
    np.savez(results_path, *(np.stack(list(map(np.asarray, parts[::num_partitions]))) for parts in results))


if __name__ == '__main__':
    main(*sys.argv[1:])
