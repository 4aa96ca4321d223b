"""The choice of weights to train, and low-rank adaptation (LoRA, arXiv 2106.09685)."""

import contextlib
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

import keras
import numpy as np

from lingpipe import hyperparams, wording
from lingpipe.layers import base_layer

_KERNELS = 'kernel', 'embeddings'


def define(p: hyperparams.Params) -> None:
    """Define the fields that `apply` reads."""
    p.Define('lora_rank', None, 'Rank of what is added to kernels and trained in their place (LoRA); None: no LoRA.')
    p.Define('lora_layers', None, 'List of regular expressions of the paths of layers with LoRA, as re.match takes '
                                  'them; None: what KerasHub chooses for its backbone, queries and values.')
    p.Define('trainable', None, 'List of regular expressions of the paths of weights to train, as re.match takes them; '
                                'with lora_rank, of those to train beside its own. None: all; with lora_rank, those '
                                'outside of the KerasHub backbone.')


def apply(model: keras.Model, named: dict[str, keras.Variable], p: hyperparams.Params) -> None:
    """Add low-rank parts to a built model, and freeze weights, in place.

    Args:
        named: dictionary from path to weight, as `model_source.names_by_path` returns it.
        p: Params with the fields of `define`.

    Raises:
        ValueError: a field has an invalid value, or nothing is left to train.
    """
    if p.lora_layers is not None and p.lora_rank is None:
        raise ValueError(f'lora_layers={p.lora_layers!r} was given without lora_rank. Set lora_rank=4, for instance.')
    if p.lora_rank is None and p.trainable is None:
        return
    weights = {name: variable for name, variable in named.items() if variable.trainable}
    if p.trainable is not None:
        kept = [weights[name] for name in _matching('trainable', p.trainable, weights)]
    else:
        kept = _outside_of_backbone(model, weights.values())
    if p.lora_rank is not None:
        _add_parts(model, named, p)
        kept += [part for each in low_rank_layers(model) for part in (each.first, each.second)]
    if not kept:
        raise ValueError(f'trainable={p.trainable!r} freezes all weights of {model.name!r}, which leaves nothing to '
                         'train. Name some of them, or set trainable=None.')
    _freeze_others(model, set(map(id, kept)))


def _outside_of_backbone(model, weights):
    backbone = _backbone_of(model)
    inside = set(map(id, weights if backbone is None else backbone.variables))
    return [variable for variable in weights if id(variable) not in inside]


def _backbone_of(model):
    """Return the KerasHub backbone of a model, or None if there is none."""
    parts = [getattr(model, 'backbone', None), model]
    return next((part for part in parts if hasattr(part, 'default_lora_layer_names')), None)


def _add_parts(model, named, p):
    if not isinstance(p.lora_rank, int) or p.lora_rank < 1:
        raise ValueError(f'lora_rank={p.lora_rank!r} is not a valid rank. Set a positive integer such as 4, or None.')
    able = _layers_by_path(model, named)
    if p.lora_layers is None:
        _add_default_parts(model, able, p.lora_rank)
        return
    for path in _matching('lora_layers', p.lora_layers, able):
        for layer in able[path]:
            layer.enable_lora(p.lora_rank)


def _add_default_parts(model, able, rank):
    backbone = _backbone_of(model)
    chosen = [] if backbone is None else backbone.default_lora_layer_names()
    if not any(layer.name in chosen for layers in able.values() for layer in layers):
        raise ValueError(f'lora_rank={rank}: KerasHub would choose the layers, but knows none of {model.name!r}. Name '
                         f'them by lora_layers, a list of regular expressions of {[*able][:5]}.')
    backbone.enable_lora(rank)
    backbone.trainable = True  # `_freeze_others` decides what is frozen, so that both ways freeze the same


def _layers_by_path(model, named):
    """Return a dictionary from paths to the layers that can have LoRA."""
    names, found = {id(variable): name for name, variable in named.items()}, {}
    for layer in model._flatten_layers(include_self=False):  # pylint: disable=protected-access
        if hasattr(layer, 'lora_enabled') and layer.weights:
            found.setdefault(names[id(layer.weights[0])].rpartition('/')[0], []).append(layer)
    return found


def _matching(field: str, patterns: list[str], names: Collection[str]) -> list[str]:
    """Return the names that any pattern matches."""
    if not isinstance(patterns, (list, tuple)) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f'{field}={patterns!r} is not a list of regular expressions. Write it like '
                         f"{field}=['.*/bias'].")
    for pattern in patterns:
        if not any(re.match(pattern, name) for name in names):
            raise ValueError(f'{field}: {pattern!r} matches nothing of the model; '
                             f'{wording.what_there_is(pattern, names)}. Change it, or leave it out.')
    return [name for name in names if any(re.match(pattern, name) for pattern in patterns)]


def _freeze_others(model, kept):
    for layer in model._flatten_layers():  # pylint: disable=protected-access
        trained = base_layer.trained_variables([layer])
        if trained and kept.isdisjoint(map(id, trained)):
            layer.trainable = False  # the whole layer: then a batch norm keeps its averages
    for variable in base_layer.trained_variables([model]):
        variable.trainable = id(variable) in kept


def is_part(name: str) -> bool:
    """Return whether a variable's path, such as 'query/lora_kernel_a', names a low-rank part of a layer."""
    return bool(re.fullmatch(rf'lora_({"|".join(_KERNELS)})_[ab](_\d+)?', name.rpartition('/')[2]))


class LowRank(NamedTuple):
    """A layer with LoRA. Its kernel is `base + alpha / rank * first @ second`."""

    layer: keras.layers.Layer
    base: keras.Variable  # its kernel or table
    first: keras.Variable  # `[..., rank]`, which starts with random numbers
    second: keras.Variable  # `[rank, ...]`, which starts with zeros

    def merged(self) -> np.ndarray:
        """Return `base + alpha / rank * first @ second` in the dtype of `base`."""
        base, scale = self.base.numpy(), self.layer.lora_alpha / self.layer.lora_rank
        update = scale * np.matmul(self.first.numpy(), self.second.numpy())
        return (base.astype(update.dtype) + update).astype(base.dtype)


def low_rank_layers(model: keras.Model) -> list[LowRank]:
    """List the layers of a model that have LoRA."""
    layers = [layer for layer in model._flatten_layers() if getattr(layer, 'lora_enabled', False)]
    return [LowRank(layer, *(getattr(layer, attribute.format(name)) for attribute in ('_{}', 'lora_{}_a', 'lora_{}_b')))
            for layer in layers for name in _KERNELS if hasattr(layer, f'lora_{name}_a')]


@contextlib.contextmanager
def able_to_learn(model: keras.Model) -> Iterator[None]:
    """In the `with` block, ignore assignments to each `LowRank.first`. Keras zeroes it when it loads kernels."""
    firsts = [each.first for each in low_rank_layers(model)]
    for first in firsts:
        first.assign = lambda value: None  # Keras sets both parts to zero, and then neither has a gradient
    try:
        yield
    finally:
        for first in firsts:
            del first.assign


@contextlib.contextmanager
def merged(model: keras.Model) -> Iterator[None]:
    """Merge LoRA into the kernels of a model inside the `with` block."""
    # Keras also merges when it saves, but in the compute dtype of the layers, and their configs keep LoRA.
    with contextlib.ExitStack() as stack:
        for each in low_rank_layers(model):
            if each.layer.quantization_mode is None:  # else Keras merges LoRA, and computes new scales
                stack.enter_context(_merged_layer(each))
        yield


@contextlib.contextmanager
def _merged_layer(low_rank):
    layer, base, parts = low_rank.layer, low_rank.base, (low_rank.first, low_rank.second)
    before, trained = base.numpy(), [part.trainable for part in parts]
    settings = {name: getattr(layer, name) for name in ('lora_rank', 'lora_alpha')}
    base.assign(low_rank.merged())
    vars(layer).update(lora_enabled=False, lora_rank=None, lora_alpha=None)
    for part in parts:
        layer._untrack_variable(part)
    try:
        yield
    finally:
        layer._tracker.unlock()
        for part, is_trained in zip(parts, trained):
            part.trainable = True  # Keras sorts variables by this
            layer._track_variable(part)
            part.trainable = is_trained
        layer._tracker.lock()
        vars(layer).update(lora_enabled=True, **settings)
        base.assign(before)
