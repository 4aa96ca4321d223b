"""What the text of a program says after the TPU compiler has worked on it."""

import math
import re

COLLECTIVES = ('all-gather', 'all-reduce', 'all-to-all', 'collective-permute', 'reduce-scatter')
_COLLECTIVE = re.compile(rf'= (\(.*?\)|\S+) ({"|".join(COLLECTIVES)})(?:-start)?\(')
# The TPU compiler writes most matrix products as convolutions.
_PRODUCT = re.compile(r' (?:convolution|dot)\(')
_TENSOR = re.compile(r'([a-z]+)(\d*)\w*\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?')
_BITS = {'pred': 8, 'token': 0}


def collectives(text):
    """Returns a dictionary from each kind of communication between devices to the list of the shapes of what it gives."""
    found = {kind: [] for kind in COLLECTIVES}
    for shape, kind in _COLLECTIVE.findall(text):
        found[kind].append(shape)
    return found


def num_products(text):
    """Returns the number of matrix products and convolutions; one in the body of a loop counts once."""
    return len(_PRODUCT.findall(text))


def entry_sizes(text):
    """Returns the bytes of each argument and of each output, as two lists, with what the device pads them to.

    A TPU stores a tensor in tiles: `f32[60,100]{1,0:T(8,128)}` takes the room of `[64, 128]`.
    """
    layout = re.search(r'entry_computation_layout=\{\((.*?)\)->(.*?)\}(?:, \w+=|$)', text.split('\n', 1)[0])
    return tuple([_tensor_bytes(*match.groups()) for match in _TENSOR.finditer(part)] for part in layout.groups())


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
