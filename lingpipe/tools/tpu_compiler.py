"""The TPU compiler, its topologies, and compiled programs. No TPU is needed."""

import gzip
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

from lingpipe import wording
from lingpipe.partition import accelerators
from lingpipe.tools import stable_hlo

_PACKAGES = ('jaxlib', 'libtpu')
_OUT_OF_MEMORY = re.compile(r'\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)')
_TOO_MANY_PARAMETERS = 'requires more parameters'
_UNITS = {unit: 1024**power for power, unit in enumerate(('', 'K', 'M', 'G', 'T'))}
# A chip of v4 is two devices for the compiler, but one for TensorFlow and the planner.
_DEVICES_OF_AN_ACCELERATOR = {'v4': 2}
_TOPOLOGIES = (
    'v2:1x1', 'v2:2x2', 'v2:4x4', 'v3:1x1', 'v3:2x2', 'v3:4x4', 'v3:4x8', 'v3:16x16', 'v3:16x32', 'v3:32x32',
    'v4:1x1x1', 'v4:2x2x1', 'v4:2x2x2', 'v4:2x2x4', 'v5e:1x1', 'v5e:2x2', 'v5e:2x4', 'v5e:4x4', 'v5e:8x8',
    'v5p:1x1x1', 'v5p:2x2x1', 'v5p:2x2x2', 'v6e:1x1', 'v6e:2x2', 'v6e:2x4', 'v6e:4x4')
KINDS = tuple(dict.fromkeys(topology.split(':')[0] for topology in _TOPOLOGIES))


class TpuCompileError(RuntimeError):
    """A failed compilation. The message gives the reason."""


class OutOfTpuMemory(TpuCompileError):
    """A failed compilation of a program that needs more memory than the device has."""

    def __init__(self, topology: str, needed: int, limit: int) -> None:
        super().__init__(
            f'A program for one device of {topology} needs {needed / 2**30:.2f} GiB and there are {limit / 2**30:.2f} '
            'GiB. Use smaller micro-batches, recomputation, or more partitions.')
        self.needed, self.limit = needed, limit


class CompiledProgram(NamedTuple):
    """A compiled program. Sizes are bytes on one device."""

    arguments: int  # its arguments, padded as the device stores them
    outputs: int
    temporaries: int  # other memory at its peak
    seconds: float  # how long it took to compile
    hlo: str  # text of the program after all optimisations
    coordinates: list  # `[x, y, z, core of the chip]` of each device on which it runs, in the order of its replicas

    @property
    def collectives(self) -> dict:
        """Dictionary from a kind in `stable_hlo.COLLECTIVES` to a list of result shapes, as texts."""
        return stable_hlo.collectives(self.hlo)


class TpuCompiler:
    """Compiler for TPUs, in a separate process that ends with the `with` block.

    `cache_dir` is a folder in which results are cached between runs; None: no cache.
    """

    def __init__(self, cache_dir: str | None = None, timeout_seconds: int = 600) -> None:
        _require_packages()
        self._cache_dir = None if cache_dir is None else pathlib.Path(cache_dir)
        self._timeout = timeout_seconds
        self._worker = None

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._stop()

    def compile(self, program: str, topology: str = 'v5e:2x2', num_devices: int = 1, spmd: bool = False,
                fast: bool = False, num_replicas: int = 1) -> CompiledProgram:
        """Compile one program.

        Args:
            program: StableHLO as text, as `stable_hlo.lower` returns it.
            topology: TPUs to compile for, such as 'v5e:2x2'; see `check`.
            num_devices: number of devices on which one replica of the program runs.
            spmd: whether the compiler is to partition the program over the devices.
            fast: whether to optimise less. Compilation is about three times faster, but programs need more memory.
            num_replicas: how many times the program runs at once, each time on other devices.

        Raises:
            ValueError: the topology is unknown.
            OutOfTpuMemory: the program does not fit.
            TpuCompileError: the compiler refused the program, died or took too long.
        """
        check(topology)
        request = {'program': program, 'topology': topology, 'num_devices': num_devices, 'spmd': spmd, 'fast': fast,
                   'num_replicas': num_replicas}
        answer = self._answer(request)
        found = _OUT_OF_MEMORY.search(answer.get('error', ''))
        if found:
            raise OutOfTpuMemory(topology, _bytes(*found.groups()[:2]), _bytes(*found.groups()[2:]))
        if 'error' in answer:
            remedy = (" Set recompute='stage', with which what backward passes read is no parameter, or raise "
                      'num_partitions.' if _TOO_MANY_PARAMETERS in answer['error'] else '')
            raise TpuCompileError(
                f'The TPU compiler for {topology} refused the program: {answer["error"][:1000]}{remedy}')
        return CompiledProgram(**answer)

    def _answer(self, request):
        """Return the cached answer, or ask the compiler."""
        if self._cache_dir is None:
            return self._ask(request)
        path = self._cache_dir / f'{_key(request)}.json.gz'
        if path.exists():
            return json.loads(gzip.decompress(path.read_bytes()))
        answer = self._ask(request)
        if 'error' not in answer or _OUT_OF_MEMORY.search(answer['error']):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f'.{os.getpid()}')
            partial.write_bytes(gzip.compress(json.dumps(answer).encode()))
            partial.replace(path)
        return answer

    def _ask(self, request):
        self._worker = self._worker or _Worker()
        try:
            return self._worker.ask(request, self._timeout)
        except TpuCompileError:
            self._stop()
            raise

    def _stop(self):
        if self._worker is not None:
            self._worker.close()
            self._worker = None


class _Worker:
    """The separate process of the compiler."""

    def __init__(self):
        self._channel, other_end = multiprocessing.Pipe()
        root = str(pathlib.Path(__file__).parents[2])
        self._process = subprocess.Popen(
            [sys.executable, '-m', 'lingpipe.tools.tpu_compiler_process', str(other_end.fileno())],
            pass_fds=[other_end.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,  # the user sees stderr
            env={**os.environ, 'PYTHONPATH': os.pathsep.join([root, *filter(None, [os.environ.get('PYTHONPATH')])])})
        other_end.close()

    def ask(self, request, timeout):
        try:
            self._channel.send(request)
            if not self._channel.poll(timeout):
                raise TpuCompileError(
                    f'The TPU compiler took more than timeout_seconds={timeout}. Raise it, or compile with fast=True.')
            return self._channel.recv()
        except (EOFError, OSError) as error:
            raise TpuCompileError('The TPU compiler died. What it wrote above may say why.') from error

    def close(self):
        self._channel.close()
        self._process.kill()
        self._process.wait()


def _require_packages():
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise TpuCompileError(
            f"The TPU compiler is not installed: {' and '.join(missing)} cannot be imported. "
            "Run pip install 'lingpipe[tpu-compile]' on Linux (x86-64), in an environment without tensorflow-tpu: it "
            'would break that.')


def _key(request):
    versions = [importlib.metadata.version(name) for name in _PACKAGES]
    return hashlib.sha256(json.dumps([versions, CompiledProgram._fields, request], sort_keys=True).encode()).hexdigest()


def _bytes(number, unit):
    return round(float(number) * _UNITS[unit])


def memory(topology: str) -> int:
    """Return the bytes that a program may use on one device of a topology."""
    kind = topology.split(':')[0]
    return accelerators.find(kind).memory // _DEVICES_OF_AN_ACCELERATOR.get(kind, 1)


def mesh(topology: str) -> list[int]:
    """Return `[x, y, z, cores]`: a topology's chips along each axis, and the cores that TensorFlow counts per chip."""
    kind, shape = topology.split(':')
    sizes = [int(size) for size in shape.split('x')]
    # TensorFlow counts a chip of v4 as one core, but the compiler counts it as two devices.
    return [*sizes, *[1] * (3 - len(sizes)), 2 if kind in ('v2', 'v3') else 1]


def check(topology: str) -> None:
    """Raise ValueError if a topology is not known."""
    if topology not in _TOPOLOGIES:
        here = 'lingpipe/tools/tpu_compiler.py'
        nearest = wording.did_you_mean(str(topology), _TOPOLOGIES, see_all=here)
        raise ValueError(f'tpu_topology={topology!r} is unknown{nearest}')


def check_room(topology: str, num_partitions: int, num_replicas: int = 1) -> None:
    """Raise ValueError if a topology is unknown or has too few devices."""
    check(topology)
    wanted, room = num_partitions * num_replicas, math.prod(mesh(topology))
    if wanted > room:
        larger = [name for name in _TOPOLOGIES
                  if name.split(':')[0] == topology.split(':')[0] and math.prod(mesh(name)) >= wanted]
        times = f' times num_replicas={num_replicas}' if num_replicas > 1 else ''
        raise ValueError(
            f'num_partitions={num_partitions}{times} is more than the {room} device{"s" if room > 1 else ""} that '
            f'TensorFlow finds on tpu_topology={topology!r}. Set {"their product" if times else "it"} to {room} or less'
            f'{f", or tpu_topology to {larger[0]!r}" if larger else ""}.')
