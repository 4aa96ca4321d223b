"""From a TensorFlow function to the program that the TPU compiler takes, and what that says after its work."""

import math
import re

import numpy as np
import tensorflow as tf

COLLECTIVES = ('all-gather', 'all-reduce', 'all-to-all', 'collective-permute', 'reduce-scatter')
_COLLECTIVE = re.compile(rf'= (\(.*?\)|\S+) ({"|".join(COLLECTIVES)})(?:-start)?\(')
# The TPU compiler writes most matrix products as convolutions.
_PRODUCT = re.compile(r' (?:convolution|dot)\(')
_TENSOR = re.compile(r'([a-z]+)(\d*)\w*\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?')
_BITS = {'pred': 8, 'token': 0}
_LOCATION = re.compile(r' loc\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*"|\([^()]*\))*\))*\)')
_LOCATION_LINE = re.compile(r'^#loc.*\n', re.MULTILINE)
_MODULE_NAME = re.compile(r'^module @\S+', re.MULTILINE)
_FUNCTION_NAME = re.compile(r'func\.func private @([\w.$-]+)')
_PACKED_BOOLEANS = re.compile(r'(?<=dense<"0x)([0-9A-F]+)(?="> : tensor<((?:\d+x)+)i1>)')


def collectives(text):
    """Returns a dictionary from each kind of communication between devices to the list of the shapes of what it gives."""
    found = {kind: [] for kind in COLLECTIVES}
    for shape, kind in _COLLECTIVE.findall(text):
        found[kind].append(shape)
    return found


def num_products(text):
    """Returns the number of matrix products and convolutions; one in the body of a loop counts once."""
    return len(_PRODUCT.findall(text))


def entry_sizes(text):
    """Returns the bytes of each argument and of each output, as two lists, with what the device pads them to.

    A TPU stores a tensor in tiles: `f32[60,100]{1,0:T(8,128)}` takes the room of `[64, 128]`.
    """
    layout = re.search(r'entry_computation_layout=\{\((.*?)\)->(.*?)\}(?:, \w+=|$)', text.split('\n', 1)[0])
    return tuple([_tensor_bytes(*match.groups()) for match in _TENSOR.finditer(part)] for part in layout.groups())


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


def lower(function, *specs):
    """Translates a function to StableHLO.

    Args:
        function: function of nests of tensors. Of variables that it uses shape and dtype matter alone.
        *specs: nests of `tf.TensorSpec` of its arguments, every dimension known.

    Returns:
        The program as text, without name and source lines and with functions numbered, so that equal programs are equal texts.

    Raises:
        ValueError: a dimension is open.
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
        text = compiled.experimental_get_compiler_ir(*flat_specs)(stage='stablehlo')
    text = _MODULE_NAME.sub('module @program', _LOCATION.sub('', _LOCATION_LINE.sub('', text)), count=1)
    return _PACKED_BOOLEANS.sub(_unpacked, _with_numbered_functions(text))


def _with_numbered_functions(text):
    """TensorFlow names the functions of loops and branches otherwise in every process."""
    numbers = {name: number for number, name in enumerate(_FUNCTION_NAME.findall(text))}
    return re.sub(r'@([\w.$-]+)', lambda match: f'@function_{numbers[match[1]]}' if match[1] in numbers else match[0], text)


def _unpacked(match):
    """TensorFlow's MLIR writes a boolean constant as bits, the newer one that reads it expects bytes."""
    count = math.prod(int(size) for size in match[2].split('x') if size)
    return np.unpackbits(np.frombuffer(bytes.fromhex(match[1]), np.uint8), count=count, bitorder='little').tobytes().hex().upper()
