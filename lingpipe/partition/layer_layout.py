"""A cut written in the letters of Megatron-LM's option --pipeline-model-parallel-layout, one letter per layer.

::

    'Et*2|(t|)*2mL'      Ett | t | t | mL       ends [3, 4, 5, 7] of 7 layers

'E' is an embedding, 't' a layer of a Transformer, 'm' a layer that predicts further tokens, 'L' the last layer with the
loss; '|' separates partitions, 't*2' and '(t|)*2' repeat, commas are ignored (NVIDIA/Megatron-LM,
megatron/core/transformer/pipeline_parallel_layer_layout.py). As in Megatron-LM, partitions are in the order of the
layers: with V of them on each of K devices, partition s is on device s % K, as in the schedule 'interleaved_1f1b'.
"""

import itertools
import re
from collections import Counter
from typing import Any

_LOSS = 'L'
_MEANINGS = {'E': 'embedding', 't': 'Transformer layer', 'm': 'layer that predicts further tokens', _LOSS: 'loss'}
_LETTERS = ''.join(_MEANINGS)
_NUM_SHOWN = 80
_LAYOUT = re.compile(rf'[{_LETTERS}|*(),0-9\s]+')
_REPEATED = re.compile(rf'(?:\(([^()]*)\)|([{_LETTERS}|]))\*([0-9]+)')


def is_layout(partition_by: Any) -> bool:
    """Returns whether a value of the field `partition_by` is meant as a layout."""
    return isinstance(partition_by, str) and ('|' in partition_by or bool(_LAYOUT.fullmatch(partition_by)))


def partition_ends(layout: str, num_layers: int, num_partitions: int) -> list[int]:
    """Returns the end indices of the partitions of a layout.

    The loss is not a layer in LingPipe: the last partition computes it after its last layer. If the stack has one layer
    for each letter, 'L' is that last layer, such as the projection to the vocabulary. If it has one layer fewer, 'L' is
    only the loss, and does not count as a layer.

    Args:
        layout: text.
        num_layers: L, the number of layers of the stack.
        num_partitions: number of partitions that the schedule has.

    Returns:
        List of ascending end indices, the last of which is L.

    Raises:
        ValueError: the text is not a layout, has a partition without a layer, or is for other numbers.
    """
    parts = _partitions(layout)
    layout = layout[:_NUM_SHOWN]  # which errors show
    letters = ''.join(parts)
    if _LOSS in letters[:-1]:
        raise ValueError(f"partition_by={layout!r} has an 'L' that is not the last layer: it is the loss, which comes "
                         'once, at the end. Write it there, or leave it out.')
    if len(letters) == num_layers + 1 and letters.endswith(_LOSS):
        parts[-1] = parts[-1].removesuffix(_LOSS)
        if not parts[-1]:
            raise ValueError(
                f"partition_by={layout!r} puts the loss, 'L', into a partition of its own, but the stack of "
                f'{num_layers} layers has none for it: LingPipe computes the loss after the last layer of the last '
                "partition. Leave out the '|' before 'L', with one partition fewer, or move it ahead by a layer.")
    elif len(letters) != num_layers:
        counts = ', '.join(f'{count} {letter}' for letter, count in Counter(letters).items())
        raise ValueError(
            f'partition_by={layout!r} has {len(letters)} layers ({counts}), the stack {num_layers}. Write one letter '
            "for each layer; only 'L' may stand for a loss that is no layer.")
    if not all(parts):
        raise ValueError(
            f'partition_by={layout!r} leaves partition {parts.index("")} without a layer, but each needs one. Leave '
            "out one of the two '|' around it, or move a layer there.")
    if len(parts) != num_partitions:
        raise ValueError(
            f'partition_by={layout!r} has {len(parts)} partitions, not {num_partitions}. Set num_partitions times '
            f"num_virtual_stages to {len(parts)}, or write {num_partitions - 1} '|'.")
    return list(itertools.accumulate(map(len, parts)))


def _partitions(layout):
    text = re.sub(r'[,\s]', '', layout)
    while match := _REPEATED.search(text):
        text = text[:match.start()] + (match[1] or match[2] or '') * int(match[3]) + text[match.end():]
    unknown = next((letter for letter in text if letter not in f'{_LETTERS}|'), None)
    if unknown:
        meanings = ', '.join(f'{letter!r} ({meaning})' for letter, meaning in _MEANINGS.items())
        raise ValueError(
            f"partition_by={layout[:_NUM_SHOWN]!r} is no layout, because of {unknown!r}: it may have {meanings}, '|' "
            "between partitions, and repeats such as 't*3' and '(tt|)*2'. Correct it, or give a list of end indices.")
    return text.split('|')
