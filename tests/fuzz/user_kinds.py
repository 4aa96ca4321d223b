"""Layers of the user's own, and the same layer called again."""

from tests.fuzz.kinds import is_exact, is_vector, kind


def _keeps_shapes(name, weight, *sources):
    """Register a kind of layers whose outputs are of the shape of what they read: pairs of a source and its traits."""
    def add(d, x, value):
        source, traits = d.choose(sources)
        d.add_layer(source, x, value._replace(is_masked=False), traits=traits)

    add.__name__ = name
    kind(is_exact, weight)(add)


_keeps_shapes(
    'state', 4, ('IntegerCounter(name={name!r})', ['counts']), ('RunningScale(name={name!r})', ['ordered']),
    ('InferenceNorm(name={name!r})', ['batch_norm']))
_keeps_shapes('added_loss', 1, ('AddedLoss(name={name!r})', ['adds_loss']), ('AddedSum(name={name!r})', ['adds_loss']))
_keeps_shapes('noise', 1, ('Noise(name={name!r})', ['random']))
_keeps_shapes('random_in_inference', 1, ('AlwaysOn(0.5, name={name!r})', ['random', 'random_in_inference']))
_keeps_shapes('own_weight', 3, ('InFunction(name={name!r})', []), ('UnusedWeight(name={name!r})', []))


@kind(is_exact, weight=1)
def shared_noise(d, x, value):
    """Two layers that draw from one generator."""
    value = value._replace(is_masked=False)
    one, other = [d.add_layer('SharedNoise(SHARED, name={name!r})', x, value, traits=['random', 'shares_a_generator'])
                  for _ in range(2)]
    d.add_call('{0} - 0.5 * {1}', [one, other], value)


@kind(is_exact)
def late_child(d, x, value):
    d.add_layer('LateChild(3, name={name!r})', x, value._replace(shape=(*value.shape[:-1], 3), is_masked=False))


@kind(is_exact, weight=4)
def called_again(d, x, value):
    """An earlier layer with inputs of the same shape; where there is none, a layer is called twice at once."""
    found = d.find_node(lambda node, read: node.call == '{layer}({0})' and len(node.outputs) == 1
                        and node.outputs[0].dtype != 'complex64'
                        and node.reads is None  # the layer that it reads might be left out
                        and not {'ordered', 'random'} & node.traits and read.shape == value.shape and read.is_float
                        and read.is_masked == value.is_masked)
    if found is None:
        x = d.add_layer(f"layers.Dense({value.shape[-1]}, activation='tanh', name={{name!r}})", x, value)
        found = len(d.nodes) - 1, d.nodes[-1], value
    number, node, _ = found
    d.add_call(node.call, x, node.outputs[0]._replace(rows=value.rows), traits=node.traits, shared_with=number)


@kind(is_exact)
def several_outputs(d, x, value):
    value = value._replace(is_masked=False)
    if d.flag():
        d.add_layer('Parts(name={name!r})', x, [value, value], '{layer}({0}).values()')
    else:
        d.add_layer('WithNone(name={name!r})', x, value._replace(shape=(*value.shape[:-1], 3)), '{layer}({0})[0]')


@kind(is_vector)
def nested_towers(d, x, value):
    value = value._replace(is_masked=False)
    other = d.other(x, lambda found: found.is_float and found.shape == value.shape and found.rows == value.rows)
    d.add_layer(f'two_towers({value.shape[0]}, name={{name!r}})', [x, other], [value, value._replace(shape=(3,))],
                '{layer}([{0}, {1}])')
