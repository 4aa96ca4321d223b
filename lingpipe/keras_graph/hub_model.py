"""Models of KerasHub as bodies."""

import contextlib
import functools
import inspect
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingpipe import hyperparams, wording
from lingpipe.devices import device_kinds
from lingpipe.input import hub_tokenizer
from lingpipe.keras_graph import model_source
from lingpipe.layers import base_layer
from lingpipe.private_api import keras_hub_presets

_TASKS = {
    'causal_lm': 'CausalLM', 'masked_lm': 'MaskedLM', 'seq_2_seq_lm': 'Seq2SeqLM', 'text_classifier': 'TextClassifier',
    'image_classifier': 'ImageClassifier'}
_BACKBONE = 'backbone'
HEADS = [*_TASKS, _BACKBONE]
_TASK_WEIGHTS, _TASK_CONFIG = 'task.weights.h5', 'task.json'
_LENGTH = 'sequence_length'  # ends the names of a preprocessor's row lengths, such as 'encoder_sequence_length'
_PREPROCESSOR_CONFIGS = 'tokenizer.json', 'image_converter.json'
_PART_BYTES = 2**20


class KerasHubModel(model_source.KerasModelSource):
    """A KerasHub backbone with a head. Each weight of a preset is loaded onto the device of its partition."""

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        p = super().Params()
        p.Define('preset', None, "KerasHub preset: a folder, a name such as 'gpt2_base_en', or 'hf://USER/MODEL'; "
                                 'None: a backbone of its own.')
        p.Define('backbone', None, "Name of a backbone class of keras_hub.models, such as 'GPT2Backbone', where there "
                                   'is not a preset.')
        p.Define('backbone_arguments', {}, 'Arguments of the backbone; with a preset, those that replace its own.')
        p.Define('head', 'causal_lm', f'What the model is for: one of {HEADS}.')
        p.Define('head_arguments', {}, 'Arguments of the head, such as num_classes.')
        p.Define('load_weights', True, "Whether a new training run starts from the preset's weights.")
        return p

    def make(self) -> keras.Model:
        p = self.params
        _check(p)
        hub = hub_tokenizer.import_keras_hub()
        with base_layer.unallocated_variables():
            if p.preset:
                backbone = hub.models.Backbone.from_preset(p.preset, load_weights=False, **p.backbone_arguments)
            else:
                backbone = self._new_backbone(hub)
            model = _with_head(hub, backbone, p)
        if p.preset and p.load_weights:
            self._awaited = AwaitedWeights(model.weights)
        return model

    def load_weights(self, model: keras.Model) -> None:
        presets, p = keras_hub_presets(), self.params
        if not (p.preset and p.load_weights):
            return
        loader = presets.get_preset_loader(p.preset)
        with self._awaited.loading():
            _load_backbone_weights(loader, getattr(model, 'backbone', model))
            if p.head in _TASKS and 'num_classes' not in p.head_arguments and _has_weights_of(p.preset, model):
                model.load_task_weights(presets.get_file(p.preset, _TASK_WEIGHTS))

    def check_tokenizer(self, model: keras.Model, tokenizer: Any) -> None:
        """Raise ValueError if the model was made for the tokens of another KerasHub tokenizer."""
        wanted, is_hub = _tokenizer_class(model), hasattr(tokenizer, 'keras_hub_tokenizer')
        if wanted is None or not (is_hub or self.params.preset):
            return  # a model without a preset can learn the tokens of any tokenizer outside KerasHub
        found = type(tokenizer.keras_hub_tokenizer() if is_hub else tokenizer)
        if not issubclass(found, wanted):
            own = f'KerasHubTokenizer.Params().Set(preset={self.params.preset!r})' if self.params.preset else (
                "KerasHubTokenizer with a preset of this class, or to BytePairTokenizer with "
                f'keras_hub_class={wanted.__name__!r}')
            raise ValueError(f'input.tokenizer makes the tokens of {found.__name__}, but {type(model).__name__} takes '
                             f'tokens of {wanted.__name__}, so that each would mean something else. Set it to {own}.')

    def export(self, model: keras.Model, folder: str, tokenizer: hub_tokenizer.KerasHubTokenizer) -> list[str]:
        """Write the model, and the preprocessor if there is one, as a preset that plain KerasHub can load."""
        if not hasattr(model, 'save_to_preset'):
            return []
        path = os.path.join(folder, 'preset')
        if self.params.head in _TASKS:
            model.preprocessor = self._preprocessor(model, tokenizer)
        model.save_to_preset(path)
        return [path]

    def _preprocessor(self, model, tokenizer):
        preprocessor_class = type(model).preprocessor_cls
        if preprocessor_class is None:
            return None
        preset = tokenizer.params.Get('preset') if 'preset' in getattr(tokenizer, 'params', {}) else None
        if preset is None and hasattr(tokenizer, 'keras_hub_tokenizer'):
            longest = getattr(model.backbone, 'max_sequence_length', None)
            names = [name for name in inspect.signature(preprocessor_class).parameters if name.endswith(_LENGTH)]
            arguments = dict.fromkeys(names, longest) if longest else {}
            return preprocessor_class(tokenizer.keras_hub_tokenizer(), **arguments)
        return preset_preprocessor(preset or self.params.preset, model)

    def _new_backbone(self, hub):
        p = self.params
        cls = getattr(hub.models, p.backbone, None)
        if not (inspect.isclass(cls) and issubclass(cls, hub.models.Backbone)):
            known = [name for name in dir(hub.models) if name.endswith('Backbone') and name != 'Backbone']
            raise ValueError(f'backbone={p.backbone!r} is not a backbone of keras_hub.models'
                             f'{wording.did_you_mean(p.backbone, known, see_all="dir(keras_hub.models)")}')
        return cls(**p.backbone_arguments)


def preset_preprocessor(preset: str | None, model: keras.Model) -> keras.Layer | None:
    """Load a preset's preprocessor for a model. Return None if there is no preprocessor."""
    preprocessor_class, exists = getattr(type(model), 'preprocessor_cls', None), keras_hub_presets().check_file_exists
    if not (preset and preprocessor_class) or not any(exists(preset, name) for name in _PREPROCESSOR_CONFIGS):
        return None
    return preprocessor_class.from_preset(preset)


def _check(p):
    if p.head not in HEADS:
        raise ValueError(f'head={p.head!r} is unknown{wording.did_you_mean(str(p.head), HEADS)}')
    if bool(p.preset) == bool(p.backbone):
        given = 'both were given' if p.preset else 'neither was given'
        raise ValueError(f'preset or backbone says which KerasHub model to use, and {given}. Set one of them.')


def _with_head(hub, backbone, p):
    if p.head == _BACKBONE:
        return backbone
    cls = keras_hub_presets().find_subclass(
        p.preset or p.backbone, getattr(hub.models, _TASKS[p.head]), type(backbone))
    known = set(inspect.signature(cls).parameters) - {'backbone', 'preprocessor'}
    stored = {name: value for name, value in _stored_config(p.preset, cls).items() if name in known}
    return cls(backbone=backbone, preprocessor=None, compile=False, **{**stored, **p.head_arguments})


def _stored_config(preset, task_class):
    """Return the config of a preset's head, or {} if there is no head of class `task_class`."""
    presets = keras_hub_presets()
    if not (preset and presets.check_file_exists(preset, _TASK_CONFIG)):
        return {}
    stored = presets.load_json(preset, _TASK_CONFIG)
    return stored['config'] if presets.check_config_class(stored) is task_class else {}


def _tokenizer_class(model):
    """Return the KerasHub tokenizer class for a model, or None if there is none."""
    if getattr(type(model), 'preprocessor_cls', None) is not None:
        return getattr(type(model).preprocessor_cls, 'tokenizer_cls', None)
    backbone_class = type(getattr(model, 'backbone', model))
    classes = [cls for cls in vars(hub_tokenizer.import_keras_hub().tokenizers).values() if inspect.isclass(cls)]
    return next((cls for cls in classes if getattr(cls, 'backbone_cls', None) is backbone_class), None)


def _load_backbone_weights(loader, backbone):
    if hasattr(loader, '_load_backbone_weights'):
        loader._load_backbone_weights(backbone)
        return

    class Existing(type(backbone)):
        def __new__(cls, *unused_arguments, **unused_fields):
            return backbone  # its variables stay on the devices of their partitions

    loader.load_backbone(Existing, load_weights=True)


def _has_weights_of(preset, model):
    return keras_hub_presets().check_file_exists(preset, _TASK_WEIGHTS) and bool(_stored_config(preset, type(model)))


class AwaitedWeights:
    """Variables that start as zeros, because their values will be loaded."""

    def __init__(self, variables: Iterable[keras.Variable]) -> None:
        self._initializers = [(variable, variable._initializer) for variable in variables]
        for variable, _ in self._initializers:
            # Drawing random values would take several times the memory of a variable.
            variable._initializer = keras.initializers.Zeros()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Copy assigned values in small parts inside the `with` block. Afterwards, initialise the other variables."""
        assigned: set[int] = set()
        for variable, _ in self._initializers:
            variable.assign = functools.partial(_assign, assigned, variable)
        try:
            yield
        finally:
            for variable, _ in self._initializers:
                del variable.assign
        for variable, initializer in self._initializers:
            if id(variable) not in assigned:  # such as weights of a new head
                with tf.device(variable.value.device):
                    variable.assign(initializer(variable.shape, dtype=variable.dtype))


def _assign(assigned, variable, value):
    """Assign a value to a variable, about one MiB at a time."""
    value = value if hasattr(value, 'shape') else np.asarray(value)
    if tuple(value.shape) != tuple(variable.shape):
        raise ValueError(f'{variable.path} has shape {tuple(variable.shape)}, but the weights to load have '
                         f'{tuple(value.shape)}. Load weights of the same model.')
    assigned.add(id(variable))
    if _num_bytes(variable) <= _PART_BYTES or device_kinds.must_compile(variable.value.device):
        variable.value.assign(tf.cast(np.asarray(value), variable.dtype))
        return
    step = max(1, _PART_BYTES * variable.shape[0] // _num_bytes(variable))
    for start in range(0, variable.shape[0], step):  # each part is copied on its way to another device or host
        part = tf.cast(np.asarray(value[start:start + step]), variable.dtype)
        _assign_rows(variable.value, start, part)


def _assign_rows(variable, start, rows):
    with tf.device(variable.device):
        tf.raw_ops.ResourceStridedSliceAssign(  # assigning to a slice would first copy the whole variable
            ref=variable.handle, begin=[start], end=[start + rows.shape[0]], strides=[1], value=rows)
        variable.sparse_read([start]).numpy()  # waits; otherwise another host would get more than it can take


def _num_bytes(variable):
    return tf.as_dtype(variable.dtype).size * math.prod(variable.shape)
