"""Compiles a program for replicas of cores of a TPU: `python -m tests.programs.compile_replicas PROGRAM TOPOLOGY R`
prints its HLO."""

import os
import sys

from jaxlib import _jax

from lingpipe.tools import tpu_compiler_process
from tests.programs import run_replicas


def main(program_path, topology, num_replicas):
    os.environ.update(tpu_compiler_process._ENVIRONMENT)
    devices = tpu_compiler_process._devices(topology)
    with open(program_path, encoding='utf-8') as file, tpu_compiler_process._context():
        module, options = run_replicas.module_and_options(devices, file.read(), int(num_replicas))
        executable = devices[0].client.compile(
            module, executable_devices=_jax.DeviceList(tuple(devices)), compile_options=options)
    print(executable.hlo_modules()[0].to_string())


if __name__ == '__main__':
    main(*sys.argv[1:])
