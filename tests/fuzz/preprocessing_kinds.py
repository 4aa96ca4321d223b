"""Layers of preprocessing, adapted to data or with a vocabulary."""

from tests.fuzz.kinds import is_exact, kind


@kind(is_exact, weight=1)
def normalization(d, x, value):
    size = ', '.join(map(str, value.shape))
    source = d.choose([f'adapted(layers.Normalization(name={{name!r}}), {size})',
                       'layers.Normalization(mean=0.5, variance=2.0, name={name!r})'])
    d.add_layer(source, x, value._replace(is_masked=False))


@kind(is_exact, weight=1)
def discretization(d, x, value):
    size = ', '.join(map(str, value.shape))
    source = d.choose([f'adapted(layers.Discretization(num_bins=4, name={{name!r}}), {size})',
                       'layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0], name={name!r})'])
    d.add_layer(source, x, value._replace(dtype='int32', limit=4, is_masked=False), "ops.cast({layer}({0}), 'int32')")


@kind(lambda value: value.dtype == 'string')
def string_lookup(d, x, value):
    source = d.choose(['adapted(layers.StringLookup(name={name!r}))',
                       "layers.StringLookup(vocabulary=['b', 'a'], name={name!r})",
                       'layers.Hashing(num_bins=3, name={name!r})'])
    d.add_layer(source, x, value._replace(dtype='int32', limit=3), "ops.cast({layer}({0}), 'int32')")


@kind(lambda value: value.dtype == 'int32' and value.limit > 0 and value.rows > 0, weight=1)
def integer_lookup(d, x, value):
    d.add_layer('layers.IntegerLookup(vocabulary=[2, 0], name={name!r})', x, value._replace(limit=3),
                "ops.cast({layer}({0}), 'int32')")


@kind(lambda value: value.dtype == 'int32' and value.limit > 0 and value.rows > 0 and len(value.shape) == 1, weight=1)
def category_encoding(d, x, value):
    d.add_layer(f"layers.CategoryEncoding({value.limit}, output_mode='multi_hot', name={{name!r}})", x,
                value._replace(shape=(value.limit,), dtype='float32', limit=0, is_masked=False))
