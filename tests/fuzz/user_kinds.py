"""Layers of the user's own, and the same layer called again."""

from tests.fuzz.kinds import is_exact, is_vector, kind


@kind(is_exact, weight=4)
def state(d, x):
    """Layers that assign in their call."""
    name, traits = d.choose([('Counter', ['counts']), ('IntegerCounter', ['counts']), ('RunningScale', ['ordered']),
                             ('InferenceNorm', ['batch_norm'])])
    d.add_layer(f'{name}(name={{name!r}})', x, d.values[x]._replace(is_masked=False), user_layers=[name], traits=traits)


@kind(is_exact, weight=1)
def added_loss(d, x):
    name, traits = d.choose([('AddedLoss', ['adds_loss']), ('AddedSum', ['adds_loss', 'adds_sum']),
                             ('AddedMaskedMean', ['adds_loss'])])
    d.add_layer(f'{name}(name={{name!r}})', x, d.values[x]._replace(is_masked=False), user_layers=[name], traits=traits)


@kind(is_exact, weight=1)
def noise(d, x):
    d.add_layer(
        'Noise(name={name!r})', x, d.values[x]._replace(is_masked=False), user_layers=['Noise'], traits=['random'])


@kind(is_exact, weight=1)
def twin_noise(d, x):
    """Two layers that draw from one generator, or that differ in their seeds."""
    value = d.values[x]._replace(is_masked=False)
    sources = d.choose([['SharedNoise(SHARED, name={name!r})'] * 2,
                        [f'layers.Dropout(0.5, seed={seed}, name={{name!r}})' for seed in (5, 6)],
                        ['layers.GaussianNoise(0.3, name={name!r})'] * 2])
    one, other = [d.add_layer(source, x, value, traits=['random', 'twins'],
                              user_layers=['SharedNoise'] * ('Shared' in source)) for source in sources]
    d.add_call('{0} - 0.5 * {1}', [one, other], value)


@kind(is_exact, weight=1)
def random_in_inference(d, x):
    d.add_layer('AlwaysOn(0.5, name={name!r})', x, d.values[x]._replace(is_masked=False), user_layers=['AlwaysOn'],
                traits=['random', 'random_in_inference'])


@kind(is_exact)
def own_function(d, x):
    d.add_layer('InFunction(name={name!r})', x, d.values[x]._replace(is_masked=False), user_layers=['InFunction'])


@kind(is_exact)
def late_child(d, x):
    value = d.values[x]
    d.add_layer('LateChild(3, name={name!r})', x, value._replace(shape=(*value.shape[:-1], 3), is_masked=False),
                user_layers=['LateChild'])


@kind(is_vector)
def unused_weight(d, x):
    d.add_layer('UnusedWeight(name={name!r})', x, d.values[x]._replace(is_masked=False), user_layers=['UnusedWeight'])


@kind(is_exact, weight=4)
def called_again(d, x):
    """An earlier layer with inputs of the same shape; where there is none, a layer is called twice at once."""
    value = d.values[x]
    found = d.find_node(lambda node, read: node.layer is not None and node.call == '{layer}({0})'
                        and len(node.outputs) == 1
                        and node.reads is None  # the layer that it reads might be left out
                        and not {'ordered', 'random'} & node.traits and read.shape == value.shape and read.is_float
                        and read.is_masked == value.is_masked)
    if found is None:
        shape = value._replace(shape=(*value.shape[:-1], value.shape[-1]))
        x = d.add_layer(f"layers.Dense({value.shape[-1]}, activation='tanh', name={{name!r}})", x, shape)
        found = len(d.nodes) - 1, d.nodes[-1], value
    number, node, _ = found
    output = node.outputs[0]._replace(rows=value.rows)
    d.add_call(node.call, x, output, traits=node.traits, user_layers=node.user_layers, shared_with=number)


@kind(is_exact)
def several_outputs(d, x):
    value = d.values[x]._replace(is_masked=False)
    if d.flag():
        d.add_layer('Parts(name={name!r})', x, [value, value], '{layer}({0}).values()', user_layers=['Parts'])
    else:
        d.add_layer('WithNone(name={name!r})', x, value._replace(shape=(*value.shape[:-1], 3)), '{layer}({0})[0]',
                    user_layers=['WithNone'])


@kind(is_vector)
def nested_towers(d, x):
    value = d.values[x]._replace(is_masked=False)
    other = d.other(x, lambda found: found.is_float and found.shape == value.shape and found.rows == value.rows)
    d.add_layer(f'two_towers({value.shape[0]}, name={{name!r}})', [x, other], [value, value._replace(shape=(3,))],
                '{layer}([{0}, {1}])', user_layers=['two_towers'])


@kind(lambda value: is_vector(value) and value.shape == (4,) and value.rows == 1, weight=1)
def optional_input(d, x):
    other = d.find(lambda found: found.is_optional)
    d.add_layer('AddIfThere(name={name!r})', [x] if other is None else [x, other],
                d.values[x]._replace(is_masked=False),
                '{layer}({0})' if other is None else '{layer}({0}, {1})', user_layers=['AddIfThere'],
                traits=[] if other is None else ['optional'])
