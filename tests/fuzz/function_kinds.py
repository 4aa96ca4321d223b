"""Functions of `keras.ops`: other shapes, rows and data types, and weights that they read by reference."""

from tests.fuzz.kinds import OTHER_FLOATS, is_exact, is_sequence, is_vector, kind


@kind(is_exact, weight=1)
def function(d, x, value):
    source = d.choose([
        'ops.tanh({0})', '{0} * 0.5 + 0.1', '1.0 - {0}', 'ops.softmax({0}, axis=-1)', 'ops.flip({0}, axis=-1)',
        'ops.cumsum({0}, axis=-1)',
        'ops.logaddexp({0}, 0.0)', '{0} * ops.mean({0}, axis=-1, keepdims=True)', 'ops.stop_gradient({0})'])
    d.add_call(source, x, value._replace(is_masked=False))


@kind(lambda value: is_exact(value) and value.shape[-1] >= 2, weight=1)
def split(d, x, value):
    first, second = value._replace(shape=(*value.shape[:-1], 1), is_masked=False), value.shape[-1] - 1
    d.add_call('ops.split({0}, [1], axis=-1)', x, [first, first._replace(shape=(*value.shape[:-1], second))])


@kind(lambda value: is_sequence(value) and value.shape[0] >= 2, weight=1)
def part(d, x, value):
    d.add_call('{0}[:, 1:]', x, value._replace(shape=(value.shape[0] - 1, value.shape[1]), is_masked=False))


@kind(is_sequence)
def einsum(d, x, value):
    other = d.other(
        x, lambda found: is_sequence(found) and found.shape[-1] == value.shape[-1] and found.rows == value.rows)
    shape = (value.shape[0], d.values[other].shape[0])
    d.add_call("ops.einsum('btd,bsd->bts', {0}, {1})", [x, other], value._replace(shape=shape, is_masked=False))


@kind(is_sequence, weight=1)
def transpose(d, x, value):
    d.add_call('ops.transpose({0}, (0, 2, 1))', x, value._replace(shape=value.shape[::-1], is_masked=False))


@kind(is_sequence)
def rows_up(d, x, value):
    """Every step of time becomes a row of its own."""
    time, features = value.shape
    d.add_call(f'ops.reshape({{0}}, (-1, {features}))', x,
               value._replace(shape=(features,), rows=value.rows * time, is_masked=False))


@kind(lambda value: is_vector(value) and value.rows > 1)
def rows_down(d, x, value):
    d.add_call(f'ops.reshape({{0}}, (-1, {value.rows}, {value.shape[0]}))', x,
               value._replace(shape=(value.rows, value.shape[0]), rows=1))


@kind(is_vector, weight=1)
def row_sum(d, x, value):
    """A number for each example."""
    d.add_call('ops.sum({0}, axis=-1)', x, value._replace(shape=()))


@kind(lambda value: value.is_float and not value.shape)
def column(d, x, value):
    d.add_call('ops.expand_dims({0}, -1)', x, value._replace(shape=(1,)))


@kind(is_exact, weight=1)
def batch_scalar(d, x, value):
    """A number that the rows of a micro-batch share."""
    scalar = d.add_call('ops.mean({0})', x, value._replace(shape=(), rows=0, is_masked=False))
    d.add_call('{0} * (1.0 + {1})', [x, scalar], value._replace(is_masked=False), traits=['couples_rows'])


@kind(is_exact, weight=1)
def to_integers(d, x, value):
    if d.flag():
        d.add_call("ops.cast({0} * 2.7 + 0.13, 'int32')", x, value._replace(dtype='int32', is_masked=False))
    else:
        d.add_call('ops.argmax({0}, axis=-1)', x, value._replace(
            shape=value.shape[:-1], dtype='int32', limit=value.shape[-1], is_masked=False))


@kind(is_exact, weight=1)
def to_boolean(d, x, value):
    d.add_call('ops.greater({0}, 0.05)', x, value._replace(dtype='bool', is_masked=False))


@kind(lambda value: value.dtype in ('int32', 'bool') and value.rows > 0)
def to_float(d, x, value):
    if value.dtype == 'int32' and value.limit and d.flag():
        d.add_call(f'ops.one_hot({{0}}, {value.limit})', x, value._replace(
            shape=(*value.shape, value.limit), dtype='float32', limit=0))
    else:
        d.add_call("ops.cast({0}, 'float32')", x, value._replace(dtype='float32', limit=0))


@kind(lambda value: value.dtype == 'bool' and value.rows > 0)
def where(d, x, value):
    other = d.find(lambda found: found.is_float and found.shape == value.shape and found.rows == value.rows)
    call, read = ("ops.cast({0}, 'float32')", [x]) if other is None else ('ops.where({0}, {1}, 0.3)', [x, other])
    d.add_call(call, read, value._replace(dtype='float32'))


@kind(is_exact, weight=1)
def to_other_floats(d, x, value):
    dtype = d.choose(OTHER_FLOATS)
    d.add_call(f'ops.cast({{0}}, {dtype!r})', x, value._replace(dtype=dtype, is_masked=False),
               traits=[] if dtype == 'float64' else ['16_bits'])


@kind(lambda value: value.dtype in OTHER_FLOATS and value.rows > 0)
def from_other_floats(d, x, value):
    d.add_call("ops.cast({0}, 'float32')", x, value._replace(dtype='float32', is_masked=False))


@kind(is_exact, weight=1)
def complex_numbers(d, x, value):
    value = value._replace(is_masked=False)
    spectrum = d.add_layer('Fourier(name={name!r})', x, value._replace(dtype='complex64'))
    d.add_layer('InverseFourier(name={name!r})', spectrum, value)


@kind(is_exact)
def weight_by_reference(d, x, value):
    """Read the weight of another layer: in a function, or in a layer that holds the other one."""
    found = d.find_node(
        lambda node, read: node.kind in ('embedding', 'dense') and node.outputs[0].shape[-1] == value.shape[-1]
        and (node.kind == 'embedding' or read.is_float), above=x)
    if found is None:
        return d.add_layer("layers.Dense(3, activation='tanh', name={name!r})", x,
                           value._replace(shape=(*value.shape[:-1], 3)))
    number, node, read = found
    attribute, width = ('embeddings', read.limit) if node.kind == 'embedding' else ('kernel', read.shape[-1])
    output, details = value._replace(shape=(*value.shape[:-1], width), is_masked=False), {
        'traits': ['by_reference'], 'reads': number}
    if d.flag():
        return d.add_call(f"ops.einsum('...d,vd->...v', {{0}}, {{reads}}.{attribute})", x, output, **details)
    return d.add_layer(f'TiedHead({{reads}}, {attribute!r}, name={{name!r}})', x, output, **details)
