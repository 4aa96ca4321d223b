"""LingPipe: pipeline-parallel training of giant neural networks in TensorFlow and Keras.

Names load when they are first used, so that params and schedules can be read without TensorFlow.
"""

import importlib
import os
import sys
from typing import Any

import wrapt

os.environ['KERAS_BACKEND'] = os.environ.get('KERAS_BACKEND') or 'tensorflow'  # though keras.json may name another one

__version__ = '0.1.0'

_HOMES = {
    'GPipeLayer': 'lingpipe.pipeline.gpipe_layer',
    'KerasModelParams': 'lingpipe.keras_graph.model_source',
    'PipelineModel': 'lingpipe.models.pipeline_model',
    'plan': 'lingpipe.training.planning',
    'use_virtual_devices': 'lingpipe.devices.device_kinds',
}
__all__ = ['GPipeLayer', 'KerasModelParams', 'PipelineModel', 'plan', 'use_virtual_devices']


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}; it has {__all__}.')
    value = getattr(importlib.import_module(_HOMES[name]), name)
    _register_saved_classes()
    return value


@wrapt.when_imported('keras')
def _register_saved_classes(keras=None):
    """Registers pipelines with `keras.saving.load_model`, unless it is a module of LingPipe that imports Keras."""
    del keras
    ours = [module for name, module in sys.modules.items() if name.startswith('lingpipe.')]
    if not any(getattr(module.__spec__, '_initializing', False) for module in ours):
        importlib.import_module(_HOMES['PipelineModel'])
