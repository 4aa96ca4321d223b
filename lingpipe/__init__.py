"""LingPipe: pipeline-parallel training of giant neural networks in TensorFlow and Keras.

Each name is imported at its first use. This lets `hyperparams` and `schedules` work without TensorFlow.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:  # so that editors complete names and show arguments
    from lingpipe import callbacks
    from lingpipe.devices.device_kinds import use_virtual_devices
    from lingpipe.keras_graph.model_source import KerasModelParams
    from lingpipe.models.pipeline_model import PipelineModel
    from lingpipe.pipeline.gpipe_layer import GPipeLayer
    from lingpipe.placements.pipeline_hosts import connect
    from lingpipe.tools.trace import trace
    from lingpipe.training.planning import plan

os.environ['KERAS_BACKEND'] = os.environ.get('KERAS_BACKEND') or 'tensorflow'  # even if keras.json names another

__version__ = '0.1.0'

_HOMES = {
    'GPipeLayer': 'lingpipe.pipeline.gpipe_layer',
    'KerasModelParams': 'lingpipe.keras_graph.model_source',
    'PipelineModel': 'lingpipe.models.pipeline_model',
    'connect': 'lingpipe.placements.pipeline_hosts',
    'plan': 'lingpipe.training.planning',
    'trace': 'lingpipe.tools.trace',
    'use_virtual_devices': 'lingpipe.devices.device_kinds',
}
_MODULES = ('callbacks',)
__all__ = [
    'GPipeLayer', 'KerasModelParams', 'PipelineModel', 'callbacks', 'connect', 'plan', 'trace', 'use_virtual_devices']


def __dir__() -> list[str]:
    return [*__all__, '__version__']


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f'lingpipe.{name}')
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}; it has {__all__}.')
    value = getattr(importlib.import_module(_HOMES[name]), name)
    _register_saved_classes()
    return value


@wrapt.when_imported('keras')
def _register_saved_classes(keras=None):
    """Register pipelines with `keras.saving.load_model`."""
    del keras
    ours = [module for name, module in sys.modules.items() if name.startswith('lingpipe.')]
    if not any(getattr(module.__spec__, '_initializing', False) for module in ours):  # none is being imported
        importlib.import_module(_HOMES['PipelineModel'])
