"""Makes a program that fails smaller: fewer nodes and outputs, plainer options, as long as it fails in the same way."""

from tests.fuzz import options, program, trial


def shrunken(drawn, fails, most_trials=60):
    """Return the smallest program found."""
    candidates = _smaller(drawn)
    for _ in range(most_trials):
        candidate = next(candidates, None)
        if candidate is None:
            break
        if fails(candidate):
            drawn, candidates = candidate, _smaller(candidate)
    return drawn


def _smaller(drawn):
    """Yield programs that are smaller in one way, the ones that are much smaller first."""
    yield from _with_other_outputs(drawn)
    yield from _with_inputs_in_place_of_nodes(drawn)
    yield from _with_nodes_left_out(drawn)
    yield from _with_plainer_options(drawn)


def _with_other_outputs(drawn):
    for number in range(len(drawn.inputs), len(drawn.values)):
        if program.can_be_output(drawn.values[number]) and (number,) != drawn.outputs:
            yield from _remade(drawn, drawn.inputs, drawn.nodes, (number,))


def _with_inputs_in_place_of_nodes(drawn):
    """The node's output becomes an input of the model."""
    first = len(drawn.inputs)
    for place, number in _nodes_of_one_output(drawn):
        output = drawn.nodes[place].outputs[0]
        if output.rows == 1 and output.dtype == 'float32':
            numbers = [*range(first), *range(first + 1, number + 1), first, *range(number + 1, len(drawn.values))]
            yield from _without(drawn, place, [*drawn.inputs, output._replace(is_masked=False)], numbers)


def _with_nodes_left_out(drawn):
    """What reads the node's output reads its input."""
    for place, number in _nodes_of_one_output(drawn):
        node = drawn.nodes[place]
        read, made = drawn.values[node.inputs[0]], node.outputs[0]
        if read._replace(is_masked=False) == made._replace(is_masked=False):
            numbers = [*range(number), node.inputs[0], *range(number, len(drawn.values) - 1)]
            yield from _without(drawn, place, drawn.inputs, numbers)


def _nodes_of_one_output(drawn):
    """Yield pairs of the place of a node that no other shares a layer with, and the number of its one output."""
    number = len(drawn.inputs)
    for place, node in enumerate(drawn.nodes):
        if len(node.outputs) == 1 and not any(place in (other.shared_with, other.reads) for other in drawn.nodes):
            yield place, number
        number += len(node.outputs)


def _without(drawn, place, inputs, numbers):
    """Yield the program without a node; `numbers` has the new number of every value."""
    def before(owner):
        return owner if owner is None else owner - (owner > place)

    nodes = [node._replace(inputs=tuple(numbers[value] for value in node.inputs), shared_with=before(node.shared_with),
                           reads=before(node.reads)) for other, node in enumerate(drawn.nodes) if other != place]
    outputs = tuple(dict.fromkeys(numbers[value] for value in drawn.outputs))
    if min(outputs) >= len(inputs):
        yield from _remade(drawn, inputs, nodes, outputs)


def _remade(drawn, inputs, nodes, outputs):
    """Yield the program with another model, cut near its beginning and near its end."""
    model = program.pruned(inputs, nodes, outputs)
    fields = {name: value for name, value in drawn.fields.items() if name != 'partition_by'}
    num_stages = fields['num_partitions'] * fields.get('num_virtual_stages', 1)
    num_units = trial.sizes_of(model._replace(policy=drawn.policy))[0] if model.nodes else 0
    shapes = [[each.values[number].shape for number in each.outputs] for each in (drawn, model)]
    for ends in [[*range(1, num_stages), num_units], [*range(num_units - num_stages + 1, num_units + 1)]]:
        if num_units >= num_stages:
            remade = drawn._replace(inputs=model.inputs, nodes=model.nodes, outputs=model.outputs, frozen=(),
                                    fields={**fields, 'partition_by': ends})
            yield remade if shapes[0] == shapes[1] and drawn.nest == 'list' else options.with_plain_loss(remade)


def _with_plainer_options(drawn):
    run, batch, fields = drawn.run, drawn.batch, drawn.fields
    of_one_replica = {name: fields[name] for name in fields if name not in ('num_replicas', 'gradient_sum')}
    parts = [
        {'run': {**run, 'predicts': False}}, {'run': {**run, 'compiled': {}} if 'compiled' in run else run},
        {'policy': 'float32'}, {'nest': 'list'}, {'frozen': ()}, {'batch': batch._replace(sample_weight=None)},
        {'batch': batch._replace(num_rows=2)}, {'fields': of_one_replica}, {'fields': {**fields, 'schedule': 'gpipe'}},
        {'fields': {**fields, 'recompute': 'none'}},
        {'fields': {**fields, 'num_micro_batches': max(1, fields['num_micro_batches'] - 1)}}]
    if fields['num_partitions'] > 1:
        parts.append({'fields': {**fields, 'num_partitions': fields['num_partitions'] - 1, 'partition_by': 'flops'}})
    yield from (each for each in (drawn._replace(**part) for part in parts) if each != drawn)
