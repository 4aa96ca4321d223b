"""Translating functions to StableHLO, which the TPU compiler reads."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe.tools.tpu_compile import tpu_compiler

_LOCATION = re.compile(r' loc\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*"|\([^()]*\))*\))*\)')
_LOCATION_LINE = re.compile(r'^#loc.*\n', re.MULTILINE)
_MODULE_NAME = re.compile(r'^module @\S+', re.MULTILINE)
_FUNCTION_NAME = re.compile(r'func\.func private @([\w.$-]+)')
_PACKED_BOOLEANS = re.compile(r'(?<=dense<"0x)([0-9A-F]+)(?="> : tensor<((?:\d+x)+)i1>)')


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
            raise tpu_compiler.TpuCompileError(
                f'TensorFlow {tf.__version__} cannot translate programs to StableHLO. Install TensorFlow 2.20 or newer '
                'to compile for TPUs.') from error
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
