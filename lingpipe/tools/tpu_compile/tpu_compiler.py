"""The TPU compiler without a TPU: the device memory that a program needs, and its optimised operations."""

import hashlib
import importlib.metadata
import importlib.util
import json
import math
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingpipe import spelling
from lingpipe.planner import accelerators
from lingpipe.tools.tpu_compile import compiled_files

COLLECTIVES = ('all-gather', 'all-reduce', 'all-to-all', 'collective-permute', 'reduce-scatter')
# A text may come from a file of somebody else, so the time of each pattern grows no faster than the text.
_COLLECTIVE = re.compile(rf'^[^=\n]*= (\(.*?\)|\S+) ({"|".join(COLLECTIVES)})(?:-start)?\(', re.MULTILINE)
# The TPU compiler writes most matrix products as convolutions.
_PRODUCT = re.compile(r' (?:convolution|dot)\(')
_TENSOR = re.compile(
    r'\b([a-z]{1,9})(\d{0,4})\w{0,20}\[([\d,]{0,200})\](?:\{([\d,]{0,200})(?::([^}]{0,200}))?\})?')
_END_OF_LAYOUT = re.compile(r'\}(?:, \w{1,99}=|$)')
_MOST_LETTERS_OF_LAYOUT = 4 * 2**20  # forty times those of the most parameters that a program can have
_MOST_DEVICE_BYTES = 2**60
_BITS = {'pred': 8, 'token': 0}
_LOCATION = re.compile(r' loc\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*"|\([^()]*\))*\))*\)')
_LOCATION_LINE = re.compile(r'^#loc.*\n', re.MULTILINE)
_MODULE_NAME = re.compile(r'^module @\S+', re.MULTILINE)
_FUNCTION_NAME = re.compile(r'func\.func private @([\w.$-]+)')
_PACKED_BOOLEANS = re.compile(r'(?<=dense<"0x)([0-9A-F]+)(?="> : tensor<((?:\d+x)+)i1>)')


def collectives(text: str) -> dict:
    """Returns a dictionary from each kind of communication between devices to the list of its results' shapes.

    Args:
        text: the HLO text of a compiled program.
    """
    found = {kind: [] for kind in COLLECTIVES}
    for shape, kind in _COLLECTIVE.findall(text):
        found[kind].append(shape)
    return found


def num_products(text: str) -> int:
    """Returns the number of matrix products and convolutions; one in the body of a loop counts once.

    Args:
        text: the HLO text of a compiled program.
    """
    return len(_PRODUCT.findall(text))


def entry_sizes(text: str) -> tuple:
    """Returns the bytes of each argument and of each output, as two lists, including the device's padding.

    A TPU stores a tensor in tiles: `f32[60,100]{1,0:T(8,128)}` takes the room of `[64, 128]`.

    Args:
        text: the HLO text of a compiled program.

    Raises:
        ValueError: it is not such a text.
    """
    _, _, layout = text.split('\n', 1)[0].partition('entry_computation_layout={(')
    arguments, arrow, rest = layout.partition(')->')
    end = _END_OF_LAYOUT.search(rest)
    if not arrow or not end or len(layout) > _MOST_LETTERS_OF_LAYOUT:
        raise ValueError('the HLO text does not say the layout of its arguments')
    return tuple([_tensor_bytes(*match.groups()) for match in _TENSOR.finditer(part)]
                 for part in (arguments, rest[:end.start()]))


def _tensor_bytes(kind, width, dimensions, order, layout):
    bits = _BITS.get(kind, int(width or 8))
    sizes = [int(size) for size in dimensions.split(',') if size]
    physical = [sizes[int(axis)] for axis in (order or '').split(',') if axis]  # the fastest axis first
    tile = re.match(r'T\(([\d,]+)\)', layout or '')
    for place, multiple in enumerate(reversed(tile[1].split(',')) if tile else ()):
        if place == len(physical):
            physical.append(1)
        physical[place] = -(-physical[place] // int(multiple)) * int(multiple)
    return math.prod(physical) * bits // 8


def lower(function: Callable, *specs: Any) -> str:
    """Translates a function to StableHLO.

    Args:
        function: function of nests of tensors. Only the shape and dtype of variables that it uses matter.
        *specs: nests of `tf.TensorSpec` of its arguments, every dimension known.

    Returns:
        The program as text, without name and source lines and with functions numbered, so that equal programs are equal
        texts.

    Raises:
        ValueError: a dimension is unknown.
        TpuCompileError: this TensorFlow has no StableHLO.
    """
    flat_specs = tf.nest.flatten(specs)
    open_specs = [spec for spec in flat_specs if not spec.shape.is_fully_defined()]
    if open_specs:
        raise ValueError(
            f'The TPU compiler needs every size, and got {tuple(open_specs[0].shape)}. Give the batch a size that '
            'num_micro_batches divides.')

    def flat_function(*tensors):
        return tf.nest.flatten(function(*tf.nest.pack_sequence_as(specs, tensors)))

    compiled = tf.function(flat_function, jit_compile=True, autograph=False)
    with tf.device('CPU:0'):
        translate = compiled.experimental_get_compiler_ir(*flat_specs)
        try:
            text = translate(stage='stablehlo')
        except ValueError as error:
            if 'Invalid stage' not in str(error):
                raise
            raise TpuCompileError(f'TensorFlow {tf.__version__} cannot translate programs to StableHLO. Install '
                                  'TensorFlow 2.20 or newer to compile for TPUs.') from error
    text = _MODULE_NAME.sub('module @program', _LOCATION.sub('', _LOCATION_LINE.sub('', text)), count=1)
    return _PACKED_BOOLEANS.sub(_unpacked, _with_numbered_functions(text))


def _with_numbered_functions(text):
    """Numbers functions, because TensorFlow gives loops and branches other names in every process."""
    numbers = {name: number for number, name in enumerate(_FUNCTION_NAME.findall(text))}
    return re.sub(
        r'@([\w.$-]+)', lambda match: f'@function_{numbers[match[1]]}' if match[1] in numbers else match[0], text)


def _unpacked(match):
    """Unpacks a boolean constant: TensorFlow's MLIR writes it as bits, the newer MLIR that reads it expects bytes."""
    count = math.prod(int(size) for size in match[2].split('x') if size)
    return np.unpackbits(np.frombuffer(bytes.fromhex(match[1]), np.uint8), count=count,
                         bitorder='little').tobytes().hex().upper()


# A chip of v4 is two devices for the compiler, but one for TensorFlow and the planner.
_DEVICES_OF_AN_ACCELERATOR = {'v4': 2}
_DEVICES = {
    'v2:1x1': 2, 'v2:2x2': 8, 'v2:4x4': 32, 'v3:1x1': 2, 'v3:2x2': 8, 'v3:4x4': 32, 'v3:4x8': 64,
    'v3:16x16': 512, 'v3:16x32': 1024, 'v3:32x32': 2048,
    'v4:1x1x1': 2, 'v4:2x2x1': 8, 'v4:2x2x2': 16, 'v4:2x2x4': 32, 'v5e:1x1': 1, 'v5e:2x2': 4, 'v5e:2x4': 8,
    'v5e:4x4': 16, 'v5e:8x8': 64,
    'v5p:1x1x1': 1, 'v5p:2x2x1': 4, 'v5p:2x2x2': 8, 'v6e:1x1': 1, 'v6e:2x2': 4, 'v6e:2x4': 8,
    'v6e:4x4': 16}
KINDS = tuple(dict.fromkeys(topology.split(':')[0] for topology in _DEVICES))
_PACKAGES = ('jaxlib', 'libtpu')
_NUM_SIZES = 5  # the first fields of a `CompiledProgram`
_SECONDS_TO_DIE = 30
_OUT_OF_MEMORY = re.compile(r'\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)')
_TOO_MANY_PARAMETERS = 'requires more parameters'
_UNITS = {unit: 1024**power for power, unit in enumerate(('', 'K', 'M', 'G', 'T'))}


def topology_memory(topology: str) -> int:
    """Returns the bytes that the compiler lets a program use on one device of a topology."""
    kind = topology.split(':')[0]
    return accelerators.find(kind).memory // _DEVICES_OF_AN_ACCELERATOR.get(kind, 1)


def topology_mesh(topology: str) -> list[int]:
    """Returns the sizes `[x, y, z, cores of a chip]` that TensorFlow finds on such a system.

    For TensorFlow a chip of v4 is one core, although it is two devices for the compiler.

    Args:
        topology: a topology that `check_topology` accepts.
    """
    kind, shape = topology.split(':')
    sizes = [int(size) for size in shape.split('x')]
    return [*sizes, *[1] * (3 - len(sizes)), 2 if kind in ('v2', 'v3') else 1]


def num_devices(topology: str) -> int:
    """Returns the number of devices of a topology that `check_topology` accepts."""
    return _DEVICES[topology]


def check_topology(topology: str, num_devices: int = 1) -> None:
    """Raises ValueError if a topology is not known, or has fewer devices than are wanted.

    Args:
        topology: chips in each direction, such as 'v5e:2x2'. A chip of v2, v3 and v4 is two devices, others are one.
        num_devices: number of devices wanted.
    """
    if topology not in _DEVICES:
        raise ValueError(
            f'tpu_topology={topology!r} is unknown'
            f'{spelling.did_you_mean(str(topology), _DEVICES, see_all="lingpipe/tools/tpu_compile/tpu_compiler.py")}')
    if not 1 <= num_devices <= _DEVICES[topology]:
        larger = [name for name, count in _DEVICES.items()
                  if name.split(':')[0] == topology.split(':')[0] and count >= num_devices]
        raise ValueError(
            f'num_devices={num_devices} does not go with tpu_topology={topology!r}, which has {_DEVICES[topology]}. '
            f'Use {f"{larger[0]!r}" if larger else "fewer devices, 1 at least"}.')


def check_room(topology: str, num_partitions: int, num_replicas: int = 1) -> None:
    """Raises ValueError if a topology is not known, or a pipeline would find no room in it.

    Args:
        topology: see `check_topology`.
        num_partitions: K, each on a device of TensorFlow: a chip, or half a chip of v2 and v3.
        num_replicas: R.
    """
    check_topology(topology)
    wanted, room = num_partitions * num_replicas, math.prod(topology_mesh(topology))
    if wanted > room:
        larger = [name for name in _DEVICES
                  if name.split(':')[0] == topology.split(':')[0] and math.prod(topology_mesh(name)) >= wanted]
        times = f' times num_replicas={num_replicas}' if num_replicas > 1 else ''
        raise ValueError(
            f'num_partitions={num_partitions}{times} is more than the {room} device{"s" if room > 1 else ""} that '
            f'TensorFlow finds on tpu_topology={topology!r}. Set {"their product" if times else "it"} to {room} or less'
            f'{f", or tpu_topology to {larger[0]!r}" if larger else ""}.')


class TpuCompileError(RuntimeError):
    """A program was not compiled; the message says why."""


class OutOfTpuMemory(TpuCompileError):
    """A program needs more memory than the device has.

    Attributes:
        needed: bytes that it needs.
        limit: bytes that the device has.
    """

    def __init__(self, topology: str, needed: int, limit: int) -> None:
        super().__init__(
            f'A program for one device of {topology} needs {needed / 2**30:.2f} GiB and there are {limit / 2**30:.2f} '
            'GiB. Use smaller micro-batches, recomputation, or more partitions.')
        self.needed, self.limit = needed, limit


class CompiledProgram(NamedTuple):
    """A compiled program; sizes in bytes, of one device.

    Attributes:
        arguments: its arguments, padded as the device stores them.
        outputs: its outputs.
        aliased: outputs that reuse the memory of arguments.
        temporaries: other memory at its peak.
        generated_code: its instructions.
        flops: floating-point operations; the body of a loop counts once.
        seconds: how long it took to compile.
        hlo: text of the program after all optimisations.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    generated_code: int
    flops: float
    seconds: float
    hlo: str

    @property
    def hbm(self) -> int:
        """Bytes of the device's memory that the program needs, without its instructions."""
        return self.arguments + self.outputs - self.aliased + self.temporaries

    @property
    def collectives(self) -> dict:
        """Dictionary from each kind in `tpu_compiler.COLLECTIVES` to the list of the shapes of its results, as text."""
        return collectives(self.hlo)

    @property
    def num_products(self) -> int:
        """Number of matrix products and convolutions in the optimised program."""
        return num_products(self.hlo)


class TpuCompiler:
    """Compiles programs in a separate process, which starts with the first program and ends with the `with` block.

    Args:
        cache_dir: folder in which results are cached between runs, or None.
        timeout_seconds: how long one program may take.
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
        """Compiles one program.

        Args:
            program: StableHLO as text, as `tpu_compiler.lower` returns it.
            topology: TPUs to compile for, such as 'v5e:2x2'; see `check_topology`.
            num_devices: number of devices of the topology that run it, those of one replica.
            spmd: whether the compiler is to partition the program over the devices.
            fast: whether to optimise less, which is about three times faster, but programs need more memory.
            num_replicas: how many times the program runs at once, each time on other devices.

        Returns:
            `CompiledProgram`.

        Raises:
            ValueError: the topology is unknown or too small.
            OutOfTpuMemory: the program does not fit.
            TpuCompileError: the compiler refused the program, died or took too long.
        """
        check_topology(topology, num_devices * num_replicas)
        request = {'program': program, 'topology': topology, 'num_devices': num_devices, 'spmd': spmd, 'fast': fast,
                   'num_replicas': num_replicas}
        answer = self._answer(request)
        found = _OUT_OF_MEMORY.search(answer.get('error', ''))
        if found:
            raise OutOfTpuMemory(topology, _bytes(*found.groups()[:2]), _bytes(*found.groups()[2:]))
        if 'error' in answer:
            raise TpuCompileError(
                f'The TPU compiler for {topology} refused the program: '
                f'{answer["error"][:1000]}{_remedy(answer["error"])}')
        return CompiledProgram(**answer)

    def coordinates(self, topology: str) -> list[tuple[int, ...]]:
        """Finds the devices of the replicas of a program that has one replica on each device of a topology.

        Args:
            topology: see `compile`.

        Returns:
            List of `(x, y, z, core of the chip)`, in the order of the replicas: host by host, not row by row.

        Raises:
            ValueError: the topology is unknown.
            TpuCompileError: the compiler does not support it, died or took too long.
        """
        check_topology(topology)
        answer = self._ask('coordinates', {'topology': topology})
        if 'error' in answer:
            raise TpuCompileError(f'The TPU compiler has no topology {topology}: {answer["error"]}')
        return [tuple(each) for each in answer['coordinates']]

    def _answer(self, request):
        """Returns an answer from a file; without one, that of the compiler, which is kept if it is of use again."""
        if self._cache_dir is None:
            return self._ask('compile', request)
        path = self._cache_dir / f'{_key(request)}.json.gz'
        answer = compiled_files.read(path, _check)
        if answer is None:
            answer = self._ask('compile', request)
            if 'error' not in answer or _OUT_OF_MEMORY.search(answer['error']):
                compiled_files.write(path, answer)
        return answer

    def _ask(self, action, request):
        self._worker = self._worker or _Worker()
        try:
            return self._worker.ask((action, request), self._timeout)
        except TpuCompileError:
            self._stop()
            raise

    def _stop(self):
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def compile_program(program: str, topology: str = 'v5e:2x2', num_devices: int = 1, spmd: bool = False,
                    timeout_seconds: int = 600, fast: bool = False,
                    cache_dir: str | None = None) -> CompiledProgram:
    """Compiles one program in a separate process; for several programs, `TpuCompiler` starts the process only once.

    Args:
        program: StableHLO as text, as `tpu_compiler.lower` returns it.
        topology: see `TpuCompiler.compile`.
        num_devices: see `TpuCompiler.compile`.
        spmd: see `TpuCompiler.compile`.
        timeout_seconds: how long it may take.
        fast: see `TpuCompiler.compile`.
        cache_dir: folder in which results are cached, or None.

    Returns:
        `CompiledProgram`; raises what `TpuCompiler.compile` raises.
    """
    with TpuCompiler(cache_dir, timeout_seconds) as compiler:
        return compiler.compile(program, topology, num_devices, spmd, fast)


class _Worker:
    """The process; its standard output and errors are kept for the error message if it dies."""

    def __init__(self):
        self._channel, other_end = multiprocessing.Pipe()
        self._log = tempfile.TemporaryFile()
        root = str(pathlib.Path(__file__).parents[2])
        self._process = subprocess.Popen(
            [sys.executable, '-m', 'lingpipe.tools.tpu_compile.worker', str(other_end.fileno())],
            pass_fds=[other_end.fileno()], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
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
            raise TpuCompileError(f'The TPU compiler died: {self._last_words()}') from error

    def close(self):
        self._channel.close()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _last_words(self):
        try:
            status = self._process.wait(_SECONDS_TO_DIE)
        except subprocess.TimeoutExpired:
            return 'it hangs'
        how = signal.Signals(-status).name if status < 0 else f'exit status {status}'
        self._log.seek(0)
        lines = self._log.read().decode(errors='replace').strip().splitlines()
        return ': '.join([how, *lines[-1:]])


def _require_packages():
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise TpuCompileError(
            f"The TPU compiler is not installed: {' and '.join(missing)} cannot be imported. "
            "Run pip install 'lingpipe[tpu-compile]' on Linux (x86-64), in an environment without tensorflow-tpu: it "
            'would break that.')


def _remedy(error):
    return (" Set recompute='stage', with which what backward passes read is no parameter, or raise num_partitions."
            if _TOO_MANY_PARAMETERS in error else '')


def _key(request):
    versions = [importlib.metadata.version(name) for name in _PACKAGES]
    return hashlib.sha256(json.dumps([versions, CompiledProgram._fields, request], sort_keys=True).encode()).hexdigest()


def _check(answer):
    """Raises an error if what a file holds is neither a compiled program nor the refusal of one that does not fit."""
    if 'error' in answer:
        numbers = _OUT_OF_MEMORY.search(answer['error']).groups()
        sizes = [_bytes(*numbers[:2]), _bytes(*numbers[2:])]
    else:
        program = CompiledProgram(**answer)
        if not math.isfinite(program.flops + program.seconds):
            raise ValueError('its operations or seconds are no number')
        arguments, outputs = entry_sizes(program.hlo)
        sizes = [*program[:_NUM_SIZES], *arguments, *outputs]
    if not all(type(size) is int and 0 <= size < _MOST_DEVICE_BYTES for size in sizes):
        raise ValueError('a size is no number of bytes')


def _bytes(number, unit):
    return round(float(number) * _UNITS[unit])
