"""Layers of the user's own, and the same layer called again."""

from tests.fuzz.kinds import is_exact, is_vector, kind


@kind(is_exact)
def state(d, x):
    """Layers that assign in their call."""
    name, traits = d.choose([('Counter', ['counts']), ('RunningScale', ['ordered']), ('InferenceNorm', ['batch_norm'])])
    d.add_layer(f'{name}(name={{name!r}})', x, d.values[x]._replace(is_masked=False), user_layers=[name], traits=traits)


@kind(is_exact, weight=1)
def added_loss(d, x):
    d.add_layer('AddedLoss(name={name!r})', x, d.values[x]._replace(is_masked=False), user_layers=['AddedLoss'], traits=['adds_loss'])


@kind(is_exact, weight=1)
def noise(d, x):
    d.add_layer('Noise(name={name!r})', x, d.values[x]._replace(is_masked=False), user_layers=['Noise'], traits=['random'])


@kind(is_exact)
def python_control_flow(d, x):
    name = d.choose(['Branch', 'Steps'])
    d.add_layer(f'{name}(name={{name!r}})', x, d.values[x]._replace(is_masked=False), user_layers=[name])


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
    found = d.find_node(lambda node, read: node.layer is not None and node.call == '{layer}({0})' and len(node.outputs) == 1
                        and not {'ordered', 'random'} & node.traits and read.shape == value.shape and read.is_float
                        and read.is_masked == value.is_masked)
    if found is None:
        shape = value._replace(shape=(*value.shape[:-1], value.shape[-1]))
        x = d.add_layer(f"layers.Dense({value.shape[-1]}, activation='tanh', name={{name!r}})", x, shape)
        found = len(d.nodes) - 1, d.nodes[-1], value
    number, node, _ = found
    output = node.outputs[0]._replace(rows=value.rows)
    d.add_call(node.call, x, output, traits=node.traits, user_layers=node.user_layers, shared_with=number)
