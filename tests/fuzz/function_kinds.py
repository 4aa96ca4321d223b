"""Functions of `keras.ops`: other shapes, rows and data types, and weights that they read by reference."""

from tests.fuzz.kinds import OTHER_FLOATS, is_exact, is_sequence, is_vector, kind


@kind(is_exact, weight=1)
def function(d, x):
    value = d.values[x]
    source = d.choose([
        'ops.tanh({0})', '{0} * 0.5 + 0.1', '1.0 - {0}', 'ops.softmax({0}, axis=-1)', 'ops.flip({0}, axis=-1)',
        'ops.cumsum({0}, axis=-1)',
        'ops.logaddexp({0}, 0.0)', '{0} * ops.mean({0}, axis=-1, keepdims=True)', 'ops.stop_gradient({0})'])
    d.add_call(source, x, value._replace(is_masked=False))


@kind(lambda value: is_exact(value) and value.shape[-1] >= 2, weight=1)
def split(d, x):
    value = d.values[x]
    first, second = value._replace(shape=(*value.shape[:-1], 1), is_masked=False), value.shape[-1] - 1
    d.add_call('ops.split({0}, [1], axis=-1)', x, [first, first._replace(shape=(*value.shape[:-1], second))])


@kind(lambda value: is_sequence(value) and value.shape[0] >= 2, weight=1)
def part(d, x):
    value = d.values[x]
    d.add_call('{0}[:, 1:]', x, value._replace(shape=(value.shape[0] - 1, value.shape[1]), is_masked=False))


@kind(is_sequence)
def einsum(d, x):
    value = d.values[x]
    other = d.other(
        x, lambda found: is_sequence(found) and found.shape[-1] == value.shape[-1] and found.rows == value.rows)
    shape = (value.shape[0], d.values[other].shape[0])
    d.add_call("ops.einsum('btd,bsd->bts', {0}, {1})", [x, other], value._replace(shape=shape, is_masked=False))


@kind(is_sequence, weight=1)
def transpose(d, x):
    value = d.values[x]
    d.add_call('ops.transpose({0}, (0, 2, 1))', x, value._replace(shape=value.shape[::-1], is_masked=False))


@kind(is_sequence)
def rows_up(d, x):
    """Every step of time becomes a row of its own."""
    value = d.values[x]
    time, features = value.shape
    d.add_call(f'ops.reshape({{0}}, (-1, {features}))', x,
               value._replace(shape=(features,), rows=value.rows * time, is_masked=False))


@kind(lambda value: is_vector(value) and value.rows > 1)
def rows_down(d, x):
    value = d.values[x]
    d.add_call(f'ops.reshape({{0}}, (-1, {value.rows}, {value.shape[0]}))', x,
               value._replace(shape=(value.rows, value.shape[0]), rows=1))


@kind(is_vector, weight=1)
def row_sum(d, x):
    """A number for each example."""
    d.add_call('ops.sum({0}, axis=-1)', x, d.values[x]._replace(shape=()))


@kind(lambda value: value.is_float and not value.shape)
def column(d, x):
    d.add_call('ops.expand_dims({0}, -1)', x, d.values[x]._replace(shape=(1,)))


@kind(is_sequence)
def time_major(d, x):
    """A layer in the middle of two transpositions, where the batch is not the first dimension."""
    value = d.values[x]
    outside = value._replace(rows=0, is_masked=False)
    first = d.add_call('ops.transpose({0}, (1, 0, 2))', x, outside)
    second = d.add_layer(
        "layers.Dense(3, activation='tanh', name={name!r})", first, outside._replace(shape=(value.shape[0], 3)))
    d.add_call('ops.transpose({0}, (1, 0, 2))', second, value._replace(shape=(value.shape[0], 3), is_masked=False))


@kind(is_exact, weight=1)
def batch_scalar(d, x):
    """A number that the rows of a micro-batch share."""
    scalar = d.add_call('ops.mean({0})', x, d.values[x]._replace(shape=(), rows=0, is_masked=False))
    d.add_call('{0} * (1.0 + {1})', [x, scalar], d.values[x]._replace(is_masked=False), traits=['couples_rows'])


@kind(is_vector, weight=3)
def similarities(d, x):
    """A mean over the similarities of a row to all rows of the batch."""
    d.add_call('ops.mean(ops.matmul({0}, ops.transpose({0})), axis=-1, keepdims=True)', x,
               d.values[x]._replace(shape=(1,), is_masked=False), traits=['couples_rows'])


@kind(is_exact, weight=1)
def to_integers(d, x):
    value = d.values[x]
    if d.flag():
        d.add_call("ops.cast({0} * 2.7 + 0.13, 'int32')", x, value._replace(dtype='int32', is_masked=False))
    else:
        d.add_call('ops.argmax({0}, axis=-1)', x, value._replace(
            shape=value.shape[:-1], dtype='int32', limit=value.shape[-1], is_masked=False))


@kind(is_exact, weight=1)
def to_boolean(d, x):
    d.add_call('ops.greater({0}, 0.05)', x, d.values[x]._replace(dtype='bool', is_masked=False))


@kind(lambda value: value.dtype in ('int32', 'bool') and value.rows > 0)
def to_float(d, x):
    value = d.values[x]
    if value.dtype == 'int32' and value.limit and d.flag():
        d.add_call(f'ops.one_hot({{0}}, {value.limit})', x, value._replace(
            shape=(*value.shape, value.limit), dtype='float32', limit=0))
    else:
        d.add_call("ops.cast({0}, 'float32')", x, value._replace(dtype='float32', limit=0))


@kind(lambda value: value.dtype == 'bool' and value.rows > 0)
def where(d, x):
    value = d.values[x]
    other = d.find(lambda found: found.is_float and found.shape == value.shape and found.rows == value.rows)
    if other is None:
        d.add_call("ops.cast({0}, 'float32')", x, value._replace(dtype='float32'))
    else:
        d.add_call('ops.where({0}, {1}, 0.3)', [x, other], value._replace(dtype='float32'))


@kind(is_exact, weight=1)
def to_other_floats(d, x):
    dtype = d.choose(OTHER_FLOATS)
    d.add_call(f'ops.cast({{0}}, {dtype!r})', x, d.values[x]._replace(dtype=dtype, is_masked=False),
               traits=[] if dtype == 'float64' else ['16_bits'])


@kind(lambda value: value.dtype in OTHER_FLOATS and value.rows > 0)
def from_other_floats(d, x):
    d.add_call("ops.cast({0}, 'float32')", x, d.values[x]._replace(dtype='float32', is_masked=False))


@kind(is_exact, weight=1)
def to_complex(d, x):
    d.add_layer(
        'Fourier(name={name!r})', x, d.values[x]._replace(dtype='complex64', is_masked=False), user_layers=['Fourier'])


@kind(lambda value: value.dtype == 'complex64')
def from_complex(d, x):
    d.add_layer(
        'InverseFourier(name={name!r})', x, d.values[x]._replace(dtype='float32'), user_layers=['InverseFourier'])


@kind(is_exact)
def weight_by_reference(d, x):
    """Read the weight of another layer: in a function, in a Lambda, or in a layer that holds the other one."""
    value = d.values[x]
    found = d.find_node(lambda node, read: node.layer is not None and (
        node.kind == 'embedding' and node.outputs[0].shape[-1] == value.shape[-1]
        or node.kind == 'dense' and node.outputs[0].shape[-1] == value.shape[-1] and read.is_float), above=x)
    if found is None:
        return dense_of(d, x)
    number, node, read = found
    weight = '{reads}.embeddings' if node.kind == 'embedding' else '{reads}.kernel'
    width = read.limit if node.kind == 'embedding' else read.shape[-1]
    output, traits = value._replace(shape=(*value.shape[:-1], width), is_masked=False), ['by_reference']
    product = f'ops.matmul(hidden, ops.transpose({weight}))'
    how = d.choose(['function', 'lambda', 'held'])
    if how == 'function':
        return d.add_call(f"ops.einsum('...d,vd->...v', {{0}}, {weight})", x, output, traits=traits, reads=number)
    if how == 'lambda':
        return d.add_layer(
            f'layers.Lambda(lambda hidden: {product}, name={{name!r}})', x, output, traits=traits, reads=number)
    attribute = weight.removeprefix('{reads}.')
    return d.add_layer(f'TiedHead({{reads}}, {attribute!r}, name={{name!r}})', x, output, traits=traits, reads=number,
                       user_layers=['TiedHead'])


def dense_of(d, x):
    value = d.values[x]
    return d.add_layer(
        "layers.Dense(3, activation='tanh', name={name!r})", x, value._replace(shape=(*value.shape[:-1], 3)))
