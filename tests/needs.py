"""Marks of tests that need more than every supported build of TensorFlow has."""

import importlib.metadata
import importlib.util

import pytest
import tensorflow as tf


def _is_installed(package):
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def tensorflow(version, reason):
    """Return a mark that skips a test with a TensorFlow before a version, such as '2.20'."""
    installed, wanted = (tuple(map(int, each.split('.')[:2])) for each in (tf.__version__, version))
    return pytest.mark.skipif(installed < wanted, reason=f'{reason} before TensorFlow {version}')


stablehlo = tensorflow('2.20', 'programs cannot be translated to StableHLO')
xla_on_cpus = pytest.mark.skipif(_is_installed('tensorflow-tpu'), reason='tensorflow-tpu has no XLA for CPUs')
tpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec('jaxlib') is None, reason="pip install 'lingpipe[tpu-compile]' on Linux")
keras_hub = pytest.mark.skipif(importlib.util.find_spec('keras_hub') is None, reason="pip install 'lingpipe[hub]'")
