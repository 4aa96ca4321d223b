"""Makes a program that fails smaller: fewer nodes and outputs, plainer options, as long as it fails in the same way."""

from tests.fuzz import options, program, trial

_PLAIN_FIELDS = [('schedule', 'gpipe'), ('recompute', 'none'), ('num_partitions', 1), ('num_micro_batches', 1),
                 ('num_partitions', 2), ('num_micro_batches', 2)]


def shrunken(drawn, fails, most_trials=60):
    """Returns the smallest program found.

    Args:
        drawn: `Program` that fails.
        fails: function that says whether a `Program` fails in the same way.
        most_trials: how many programs may be tried.

    Returns:
        `Program`.
    """
    trials, found = 0, True
    while found:
        found = False
        for candidate in _smaller(drawn):
            if trials == most_trials:
                return drawn
            trials += 1
            if fails(candidate):
                drawn, found = candidate, True
                break
    return drawn


def _smaller(drawn):
    """Yields programs that are smaller in one way, the ones that are much smaller first."""
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
    for place, node in enumerate(drawn.nodes):
        if len(node.outputs) == 1 and node.outputs[0].rows == 1 and node.outputs[0].dtype == 'float32':
            number = first + sum(len(earlier.outputs) for earlier in drawn.nodes[:place])
            inputs = [*drawn.inputs, node.outputs[0]._replace(is_masked=False)]
            # The new input takes the number behind the others; all values up to the node's move up by one.
            def moved(value, number=number):
                if value < first:
                    return value
                return first if value == number else value + 1 if value < number else value

            nodes = [each._replace(inputs=tuple(map(moved, each.inputs))) for other, each in enumerate(drawn.nodes) if other != place]
            if not any(place in (each.shared_with, each.reads) for each in drawn.nodes):
                nodes = [each._replace(shared_with=_before(each.shared_with, place), reads=_before(each.reads, place)) for each in nodes]
                yield from _remade(drawn, inputs, nodes, tuple(map(moved, drawn.outputs)))


def _with_nodes_left_out(drawn):
    """What reads the node's output reads its input."""
    first = len(drawn.inputs)
    for place, node in enumerate(drawn.nodes):
        values = drawn.values
        number = first + sum(len(earlier.outputs) for earlier in drawn.nodes[:place])
        same = len(node.outputs) == 1 and values[node.inputs[0]]._replace(is_masked=False) == node.outputs[0]._replace(is_masked=False)
        if same and not any(place in (each.shared_with, each.reads) for each in drawn.nodes):
            def moved(value, number=number, instead=node.inputs[0]):
                return instead if value == number else value - (value > number)

            nodes = [each._replace(inputs=tuple(map(moved, each.inputs)), shared_with=_before(each.shared_with, place),
                                   reads=_before(each.reads, place)) for other, each in enumerate(drawn.nodes) if other != place]
            outputs = tuple(dict.fromkeys(map(moved, drawn.outputs)))
            if min(outputs) >= first:
                yield from _remade(drawn, drawn.inputs, nodes, outputs)


def _before(number, place):
    return number if number is None else number - (number > place)


def _remade(drawn, inputs, nodes, outputs):
    """Yields the program with another model, cut by count where the present ends do not fit."""
    model = program.pruned(inputs, nodes, outputs)
    fields = {name: value for name, value in drawn.fields.items() if name != 'partition_by'}
    num_stages = fields['num_partitions'] * fields.get('num_virtual_stages', 1)
    num_units = trial.sizes_of(model)[0] if model.nodes else 0
    if num_units >= num_stages:
        ends = [*range(1, num_stages), num_units]
        for by in [ends, [*range(num_units - num_stages + 1, num_units), num_units]]:
            remade = drawn._replace(inputs=model.inputs, nodes=model.nodes, outputs=model.outputs, frozen=(),
                                    fields={**fields, 'partition_by': by})
            is_new = len(model.outputs) == 1 and (len(drawn.outputs) > 1 or drawn.values[drawn.outputs[0]] != model.values[model.outputs[0]])
            yield options.with_plain_loss(remade) if is_new or drawn.nest == 'dict' and len(outputs) == 1 else remade


def _with_plainer_options(drawn):
    run = {name: value for name, value in drawn.run.items() if name != 'predicts' or not value}
    if run != drawn.run:
        yield drawn._replace(run={**run, 'predicts': False})
    if drawn.policy != 'float32':
        yield drawn._replace(policy='float32')
    for plainer in [drawn._replace(nest='list'), drawn._replace(frozen=()),
                    drawn._replace(batch=drawn.batch._replace(sample_weight=None)),
                    drawn._replace(batch=drawn.batch._replace(num_rows=2))]:
        if plainer != drawn:
            yield plainer
    if drawn.fields.get('schedule') == 'interleaved_1f1b':
        return
    for name, value in _PLAIN_FIELDS:
        if drawn.fields[name] != value and not (name.startswith('num_') and drawn.fields[name] < value):
            fields = {**drawn.fields, name: value}
            if name == 'num_partitions':
                fields.pop('partition_by', None)
            yield drawn._replace(fields=fields)
