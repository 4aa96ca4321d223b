"""Functions for programs as text, in the languages StableHLO and HLO."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

_LOCATION = re.compile(r' loc\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*"|\([^()]*\))*\))*\)')
_LOCATION_LINE = re.compile(r'^#loc.*\n', re.MULTILINE)
_MODULE_NAME = re.compile(r'^module @\S+', re.MULTILINE)
_FUNCTION_NAME = re.compile(r'func\.func private @([\w.$-]+)')
_PACKED_BOOLEANS = re.compile(r'(?<=dense<"0x)([0-9A-F]+)(?="> : tensor<((?:\d+x)+)i1>)')
COLLECTIVES = ('all-gather', 'all-reduce', 'all-to-all', 'collective-permute', 'reduce-scatter')
_COLLECTIVE = re.compile(rf'^[^=\n]*= (\(.*?\)|\S+) ({"|".join(COLLECTIVES)})(?:-start)?\(', re.MULTILINE)
_TENSOR = re.compile(
    r'\b([a-z]{1,9})(\d{0,4})\w{0,20}\[([\d,]{0,200})\](?:\{([\d,]{0,200})(?::([^}]{0,200}))?\})?')
_END_OF_LAYOUT = re.compile(r'\}(?:, \w{1,99}=|$)')
_BITS = {'pred': 8, 'token': 0}


def lower(function: Callable, *specs: Any) -> str:
    """Translate a function to StableHLO.

    Args:
        function: takes nests of tensors. It may read variables, whose values do not matter.
        *specs: nests of `tf.TensorSpec`, one for each argument of the function, with every dimension known.

    Returns:
        The program as text. Equal programs have equal texts.

    Raises:
        ValueError: a dimension is unknown, or TensorFlow is older than 2.20.
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
        text = translate(stage='stablehlo')
    text = _MODULE_NAME.sub('module @program', _LOCATION.sub('', _LOCATION_LINE.sub('', text)), count=1)
    return _PACKED_BOOLEANS.sub(_unpacked, _with_numbered_functions(text))


def _with_numbered_functions(text):
    """Replace the names of functions by numbers."""
    # TensorFlow names loops and branches differently in every process.
    numbers = {name: number for number, name in enumerate(_FUNCTION_NAME.findall(text))}
    return re.sub(
        r'@([\w.$-]+)', lambda match: f'@function_{numbers[match[1]]}' if match[1] in numbers else match[0], text)


def _unpacked(match):
    """Unpack a boolean constant from bits to bytes."""
    # TensorFlow's MLIR writes bits, but the compiler's newer MLIR reads bytes.
    count = math.prod(int(size) for size in match[2].split('x') if size)
    return np.unpackbits(np.frombuffer(bytes.fromhex(match[1]), np.uint8), count=count,
                         bitorder='little').tobytes().hex().upper()


def collectives(text: str) -> dict:
    """Find collective operations in an HLO text. Return {kind: list of result shapes}."""
    found = {kind: [] for kind in COLLECTIVES}
    for shape, kind in _COLLECTIVE.findall(text):
        found[kind].append(shape)
    return found


def entry_sizes(text: str) -> tuple:
    """Return two lists: the padded sizes in bytes of an HLO program's arguments, and of its outputs.

    Raises:
        ValueError: the text lacks the layout of its arguments.
    """
    _, _, layout = text.split('\n', 1)[0].partition('entry_computation_layout={(')
    arguments, arrow, rest = layout.partition(')->')
    end = _END_OF_LAYOUT.search(rest)
    if not arrow or not end:
        raise ValueError('the HLO text does not say the layout of its arguments')
    return tuple([_tensor_bytes(*match.groups()) for match in _TENSOR.finditer(part)]
                 for part in (arguments, rest[:end.start()]))


def _tensor_bytes(kind, width, dimensions, order, layout):
    bits = _BITS.get(kind, int(width or 8))
    sizes = [int(size) for size in dimensions.split(',') if size]
    physical = [sizes[int(axis)] for axis in (order or '').split(',') if axis]  # the fastest axis first
    # In tiles, f32[60,100]{1,0:T(8,128)} takes as much memory as [64, 128].
    tile = re.match(r'T\(([\d,]+)\)', layout or '')
    for place, multiple in enumerate(reversed(tile[1].split(',')) if tile else ()):
        if place == len(physical):
            physical.append(1)
        physical[place] = -(-physical[place] // int(multiple)) * int(multiple)
    return math.prod(physical) * bits // 8
