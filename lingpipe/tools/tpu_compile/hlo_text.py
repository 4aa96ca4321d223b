"""What the HLO text of a compiled program tells: communication, matrix products, sizes of arguments and outputs."""

import math
import re

COLLECTIVES = ('all-gather', 'all-reduce', 'all-to-all', 'collective-permute', 'reduce-scatter')
_COLLECTIVE = re.compile(rf'^[^=\n]*= (\(.*?\)|\S+) ({"|".join(COLLECTIVES)})(?:-start)?\(', re.MULTILINE)
# The TPU compiler writes most matrix products as convolutions.
_PRODUCT = re.compile(r' (?:convolution|dot)\(')
_TENSOR = re.compile(
    r'\b([a-z]{1,9})(\d{0,4})\w{0,20}\[([\d,]{0,200})\](?:\{([\d,]{0,200})(?::([^}]{0,200}))?\})?')
_END_OF_LAYOUT = re.compile(r'\}(?:, \w{1,99}=|$)')
_BITS = {'pred': 8, 'token': 0}


def collectives(text: str) -> dict:
    """Returns a dictionary from each kind of communication between devices to the list of its results' shapes."""
    found = {kind: [] for kind in COLLECTIVES}
    for shape, kind in _COLLECTIVE.findall(text):
        found[kind].append(shape)
    return found


def num_products(text: str) -> int:
    """Returns the number of matrix products and convolutions; one in the body of a loop counts once."""
    return len(_PRODUCT.findall(text))


def entry_sizes(text: str) -> tuple:
    """Returns the bytes of each argument and of each output, as two lists, including the device's padding.

    A TPU stores a tensor in tiles: `f32[60,100]{1,0:T(8,128)}` takes the room of `[64, 128]`.

    Raises:
        ValueError: it is not such a text.
    """
    _, _, layout = text.split('\n', 1)[0].partition('entry_computation_layout={(')
    arguments, arrow, rest = layout.partition(')->')
    end = _END_OF_LAYOUT.search(rest)
    if not arrow or not end:
        raise ValueError('the HLO text does not say the layout of its arguments')
    return tuple([_tensor_bytes(*match.groups()) for match in _TENSOR.finditer(part)]
                 for part in (arguments, rest[:end.start()]))


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
