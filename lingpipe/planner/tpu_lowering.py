"""From a TensorFlow function to the program that the TPU compiler takes; nothing runs and nothing is allocated."""

import re

import tensorflow as tf

_LOCATION = re.compile(r' loc\((?:#loc\d*|unknown|"[^"]*"(?:\([^()]*\))?)\)')
_LOCATION_LINE = re.compile(r'^#loc.*\n', re.MULTILINE)
_MODULE_NAME = re.compile(r'^module @\S+', re.MULTILINE)


def lower(function, *specs):
    """Translates a function to StableHLO.

    Args:
        function: function of tensors, or `tf.function` with jit_compile=True. Of variables that it uses shape and dtype matter alone.
        *specs: nests of `tf.TensorSpec` of its arguments, every dimension known.

    Returns:
        The program as text, without name and source lines, so that equal programs are equal texts.

    Raises:
        ValueError: a dimension is open.
    """
    open_specs = [spec for spec in tf.nest.flatten(specs) if not spec.shape.is_fully_defined()]
    if open_specs:
        raise ValueError(
            f'The TPU compiler needs every size, and got {tuple(open_specs[0].shape)}. Give the batch a size that '
            'num_micro_batches divides.')
    if not hasattr(function, 'experimental_get_compiler_ir'):
        function = tf.function(function, jit_compile=True, autograph=False)
    with tf.device('CPU:0'):
        text = function.experimental_get_compiler_ir(*specs)(stage='stablehlo')
    return _MODULE_NAME.sub('module @program', _LOCATION.sub('', _LOCATION_LINE.sub('', text)), count=1)
