"""Draws a program: node after node, each of a kind that can read a value that is there."""

import random

from tests.fuzz import (  # noqa: F401  modules of kinds register theirs
    function_kinds,
    layer_kinds,
    options,
    preprocessing_kinds,
    program,
    sequence_kinds,
    trial,
    user_kinds,
)
from tests.fuzz.kinds import KINDS
from tests.fuzz.program import Node, Value

_INPUTS = [Value((4,)), Value((4,)), Value((3, 2)), Value((3, 2)), *[Value((4, 4, 2))] * 3, Value((3,), 'int32', limit=6),
           Value((2, 3), 'bool'), Value((2,), 'string')]
_WAYS_BACK = ['string_lookup', 'from_other_floats', 'to_float', 'rows_down', 'flatten', 'column']
_PLACES_FROM_THE_END = [0, 0, 0, 0, 1, 1, 2, 3]


class Drawing:
    """The nodes drawn so far."""

    def __init__(self, generator):
        self._random = generator
        self.inputs = [self.choose(_INPUTS) for _ in range(self.choose([1, 1, 2, 3]))]
        self.values = list(self.inputs)
        self.nodes = []

    def choose(self, options):
        """Draw one of a list."""
        return self._random.choice(options)

    def flag(self):
        """Draw a boolean."""
        return self.choose([False, True])

    def find(self, accepts):
        """Draw the number of a value that is accepted; None where there is none."""
        found = [number for number, value in enumerate(self.values) if accepts(value)]
        return self.choose(found) if found else None

    def other(self, x, accepts):
        """Draw the number of a value that is accepted; `x` itself where there is no other."""
        found = self.find(lambda value: accepts(value) and value is not self.values[x])
        return x if found is None else found

    def find_node(self, accepts, above=None):
        """Draw a node with a layer that is accepted."""
        found = [(number, node, self.values[node.inputs[0]]) for number, node in enumerate(self.nodes)
                 if node.layer is not None and accepts(node, self.values[node.inputs[0]])
                 and (above is None or number in self._nodes_above(above))]
        return self.choose(found) if found else None

    def _nodes_above(self, value):
        """Return the set of the numbers of the nodes that a value is computed from."""
        makers = [number for number, node in enumerate(self.nodes) for _ in node.outputs]
        place = value - (len(self.values) - len(makers))
        if place < 0:
            return set()
        return {makers[place]}.union(*[self._nodes_above(read) for read in self.nodes[makers[place]].inputs])

    def add_layer(self, source, inputs, outputs, call='{layer}({0})', **details):
        """Add a layer and its call; return the number of its first output."""
        return self._add(source, call, inputs, outputs, **details)

    def add_call(self, call, inputs, outputs, **details):
        """Add the call of a function, or of an earlier layer; return the number of its first output."""
        return self._add(None, call, inputs, outputs, **details)

    def _add(self, layer, call, inputs, outputs, traits=(), shared_with=None, reads=None):
        inputs = tuple(inputs) if isinstance(inputs, list) else (inputs,)
        outputs = tuple(outputs) if isinstance(outputs, list) else (outputs,)
        self.nodes.append(Node(self._kind, layer, call, inputs, outputs, shared_with, frozenset(traits), reads))
        self.values += outputs
        return len(self.values) - len(outputs)

    def add_node(self):
        """Draw a value among the newest and a kind that reads it, and add this."""
        x = max(0, len(self.values) - 1 - self.choose(_PLACES_FROM_THE_END))
        possible = [kind for kind in KINDS.values() if kind.accepts(self.values[x])]
        if possible:
            self.add(self._random.choices(possible, [kind.weight for kind in possible])[0].name, x)

    def outputs(self):
        """Return the numbers of what nothing reads and a model can return, one of a layer, the newest ones first."""
        read, number, found = {number for node in self.nodes for number in node.inputs}, len(self.inputs), {}
        for place, node in enumerate(self.nodes):
            if number not in read and program.can_be_output(node.outputs[0]):
                found[place if node.shared_with is None else node.shared_with] = number
            number += len(node.outputs)
        return list(found.values())[::-1]

    def close(self):
        """Make of the newest value one that a model can return."""
        while not program.can_be_output(self.values[-1]):
            name = next(name for name in _WAYS_BACK if KINDS[name].accepts(self.values[-1]))
            self.add(name, len(self.values) - 1)

    def add(self, name, x):
        """Add what a kind makes of a value."""
        self._kind = name
        KINDS[name].add(self, x, self.values[x])


def model_of(generator):
    """Draw a model."""
    drawing = Drawing(generator)
    num_nodes = drawing.choose([3, 4, 5, 6, 7, 8])
    while len(drawing.nodes) < num_nodes or not drawing.outputs():
        drawing.add_node()
    drawing.close()
    if KINDS['row_sum'].accepts(drawing.values[-1]) and drawing.choose([False] * 4 + [True]):
        drawing.add('row_sum', len(drawing.values) - 1)
    return drawing, program.pruned(drawing.inputs, drawing.nodes, drawing.outputs()[:drawing.choose([1, 1, 2, 3])])


def program_of(seed):
    """Return the `Program` of a seed, an integer; its model has something to train."""
    generator = random.Random(seed)
    while True:
        drawing, model = model_of(generator)
        if trial.sizes_of(model)[1]:
            return options.with_options(drawing, model)
