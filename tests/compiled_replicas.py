"""Programs for several replicas, run on CPU devices or compiled for a TPU, each in a process of its own."""

import pathlib
import subprocess
import sys

import numpy as np


def run(program, arguments, num_replicas, num_cores, folder):
    """Run a program on R replicas of K CPU devices each."""
    paths = [folder / name for name in ('program.mlir', 'arguments.npz', 'results.npz')]
    paths[0].write_text(program, encoding='utf-8')
    np.savez(paths[1], *arguments)
    _call('run_replicas', *paths, str(num_replicas), str(num_cores))
    with np.load(paths[2]) as results:
        return [results[f'arr_{index}'] for index in range(len(results))]


def hlo_of_tpu(program, topology, num_replicas, folder):
    """Compile a program for replicas that fill a TPU topology, and return the HLO text."""
    path = folder / 'program.mlir'
    path.write_text(program, encoding='utf-8')
    return _call('compile_replicas', path, topology, str(num_replicas))


def _call(module, *arguments):
    return subprocess.run([sys.executable, '-m', f'tests.programs.{module}', *arguments], check=True, text=True,
                          stdout=subprocess.PIPE, cwd=pathlib.Path(__file__).parents[1]).stdout
