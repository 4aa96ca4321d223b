"""Checks of a preset's files before KerasHub reads them: they must be in its folder, and not be implausibly large."""

import os
import pathlib
from typing import Any

from lingpipe import text_files
from lingpipe.private_api import keras_hub_presets

_CONFIG = 'config.json'
_INDEXES = 'model.weights.json', 'model.safetensors.index.json'
_WHOLE = 'model.weights.h5', 'model.safetensors'
_TEXTS = '.json', '.txt'
_MOST_BYTES = 64 * 2**20  # twice the largest tokenizer.json of a public model; indexes and configurations have less
_LAYERS = 'layers', 'blocks', 'depth', 'n_layer'  # in the names of fields with KerasHub's numbers of layers
_MOST_LAYERS = 10_000


def check(preset: str) -> None:
    """Refuses a preset with files that cannot be genuine.

    Args:
        preset: folder or name of the preset.

    Raises:
        ValueError: a file is not a regular file or is outside the folder, a text is too large, or an index names files
            outside the folder; the message is the reason.
    """
    if os.path.isdir(preset):
        for path in sorted(pathlib.Path(preset).rglob('*')):
            if path.is_symlink() or not path.is_dir():
                _check_file(path, pathlib.Path(preset))
    presets = keras_hub_presets()
    if presets.check_file_exists(preset, _CONFIG):
        require_few_layers(_json(presets.get_file(preset, _CONFIG)))
    for name in _INDEXES:
        _shards(preset, name)


def num_bytes_of_weights(preset: str) -> int:
    """Returns the size of the files with the weights of a preset, after KerasHub has downloaded them.

    Args:
        preset: folder or name of the preset.
    """
    presets = keras_hub_presets()
    names = {*_WHOLE, *(shard for name in _INDEXES for shard in _shards(preset, name))}
    return sum(os.path.getsize(presets.get_file(preset, name)) for name in names
               if presets.check_file_exists(preset, name))


def require_few_layers(config: dict[str, Any]) -> None:
    """Refuses a configuration with more layers than any model has.

    Args:
        config: a value from JSON.

    Raises:
        ValueError: there is such a number; the message is the reason.
    """
    waiting = [('', config)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(str(key), child) for key, child in value.items()]
        elif isinstance(value, list):
            waiting += [(name, child) for child in value]
        elif isinstance(value, (int, float)) and value > _MOST_LAYERS and any(word in name for word in _LAYERS):
            raise ValueError(
                f'its configuration has {name[:60]}={value:.3g}, and no model has more than {_MOST_LAYERS:,} layers')


def _check_file(path, folder):
    found = path.resolve()
    # The second folder has the files of a snapshot in Hugging Face's cache of downloads.
    if not any(found.is_relative_to(place) for place in (folder.resolve(), folder.resolve().parent.parent / 'blobs')):
        raise ValueError(f'{path.relative_to(folder)} is a link to {found}, outside of the folder')
    text_files.require_regular(found)
    if path.suffix in _TEXTS and found.stat().st_size > _MOST_BYTES:
        raise ValueError(f'{path.relative_to(folder)} has more than {_MOST_BYTES:,} bytes, which no such file needs')


def _json(path):
    return text_files.parsed_json(text_files.read(path, _MOST_BYTES))


def _shards(preset, index):
    """Returns the names of the files in an index of shards; no names without an index."""
    presets = keras_hub_presets()
    if not presets.check_file_exists(preset, index):
        return set()
    stored = _json(presets.get_file(preset, index))
    mapped = stored.get('weight_map') if isinstance(stored, dict) else None
    if not isinstance(mapped, dict):
        raise ValueError(f"{index} has no 'weight_map' from weights to files")
    names = [name for value in mapped.values() for name in (value if isinstance(value, list) else [value])]
    for name in names:
        if not isinstance(name, str) or os.path.isabs(name) or '..' in pathlib.PurePath(name).parts:
            raise ValueError(f'{index} names {str(name)[:100]!r}, which is no file of the preset')
    return set(names)
