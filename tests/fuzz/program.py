"""A drawn model as data, and the Python source that it stands for: what is printed is what was run."""

import inspect
import re
import textwrap
from typing import Any, NamedTuple

from tests.fuzz import user_layers


class Value(NamedTuple):
    """What is known of a symbolic tensor."""

    shape: tuple  # tuple of its sizes without the batch
    dtype: str = 'float32'  # name of its data type, or 'string'
    rows: int = 1  # how many rows it has for each example; 0: it is one number of all examples
    limit: int = 0  # for integers, the number that all are below
    is_masked: bool = False  # whether it has a Keras mask

    @property
    def is_float(self):
        """Whether layers and functions take it as it is."""
        return self.dtype == 'float32' and self.rows > 0


class Node(NamedTuple):
    """One call of a layer or of a function."""

    kind: str  # name of the kind that drew it
    layer: Any  # source of the layer, None for a function or where the layer is that of an earlier node
    call: str  # source of the call, with {layer} for the layer's name and {0}, {1}, ... for the values that it reads
    inputs: tuple  # tuple of numbers of values
    outputs: tuple  # tuple of `Value`s
    # number of the node that makes the layer, or that makes the layer whose weight is read; else None
    shared_with: Any = None
    # frozenset of what options and the comparison have to know, such as 'random', 'counts' or 'couples_rows'
    traits: frozenset = frozenset()
    reads: Any = None  # number of the node whose layer's weight it reads, or None


class Program(NamedTuple):
    """A model with its data and the way to train it."""

    inputs: tuple  # tuple of `Value`s, the first values
    nodes: tuple  # tuple of `Node`s
    outputs: tuple  # tuple of the numbers of the values that the model returns
    frozen: tuple = ()  # tuple of numbers of nodes whose layers are not trained
    nest: str = 'list'  # how inputs and outputs are held: 'list' or 'dict'
    policy: str = 'float32'  # name of the dtype policy
    batch: Any = None  # `Batch`
    fields: Any = None  # dictionary of the fields of the pipeline
    run: Any = None  # dictionary of the arguments of `comparison.compare`

    @property
    def values(self):
        """List of all `Value`s in the order of their numbers."""
        return [*self.inputs, *(value for node in self.nodes for value in node.outputs)]

    @property
    def traits(self):
        """Set of the traits of all nodes."""
        return frozenset().union(*[node.traits for node in self.nodes])


class Batch(NamedTuple):
    """The data."""

    num_rows: int  # rows of the batch; of all batches together in `fit`
    loss: str  # source of the loss
    optimizer: str  # source of `make_optimizer`, or ''
    target_dtype: str  # 'float32', or 'int32' for labels below the last size of an output
    sample_weight: Any  # None, or the shape of the weights of one example


def can_be_output(value):
    """Whether a model returns such a value: floats with a row for each example."""
    return value.is_float and value.rows == 1


def pruned(inputs, nodes, outputs):
    """Return a `Program` of what the outputs need, a shared layer belonging to the first of its calls that is left."""
    made, next_value = [], len(inputs)
    for node in nodes:
        made.append(range(next_value, next_value + len(node.outputs)))
        next_value += len(node.outputs)
    needed, kept = set(outputs), []
    for number in reversed(range(len(nodes))):
        if needed.intersection(made[number]):
            needed.update(nodes[number].inputs)
            kept.insert(0, number)
    values = [number for number in range(len(inputs)) if number in needed]
    values += [value for number in kept for value in made[number]]
    values = {value: place for place, value in enumerate(values)}
    owners, new = {}, []
    for place, number in enumerate(kept):
        node = nodes[number]
        owner = number if node.shared_with is None else node.shared_with
        is_first = owners.setdefault(owner, place) == place
        new.append(node._replace(
            inputs=tuple(values[value] for value in node.inputs), layer=nodes[owner].layer if is_first else None,
            shared_with=None if is_first else owners[owner], reads=None if node.reads is None else owners[node.reads]))
    return Program(tuple(value for number, value in enumerate(inputs) if number in needed), tuple(new),
                   tuple(values[value] for value in outputs))


def source_of(program):
    """Return the program as Python that defines `make`, `x`, `y`, `sample_weight`, `loss`, `fields` and `run`."""
    return '\n'.join([source_of_model(program), _data(program), _TAIL])


def source_of_model(program):
    """Return the part of the source that defines `make`."""
    return '\n'.join(part for part in [_HEAD, _user_layers(program), _make(program)] if part)


_WITH_MORE_BITS = {'float32': 'float64'}
ARGUMENTS = ('make', 'x', 'y', 'sample_weight', 'loss', 'fields')
_HEAD = '''\
"""Found by the fuzzer. Run it in a checkout: PYTHONPATH=. python this_file.py"""
import lingpipe
lingpipe.use_virtual_devices(8)
import keras
import numpy as np
import tensorflow as tf

layers, ops = keras.layers, keras.ops
'''
_PERTURBATION = [
    'noise = np.random.default_rng(1)',
    'for weight in model.weights:',
    "    if 'float' in weight.dtype and weight.name not in ('mean', 'variance'):  # which Normalization has read already",
    '        weight.assign(weight + noise.uniform(-0.2, 0.2, weight.shape))']
_TAIL = '''\
if __name__ == '__main__':
    from tests.fuzz import comparison
    print(comparison.compare(make, x, y, sample_weight, loss, fields, **run))
'''


def _user_layers(program):
    called = {name for node in program.nodes for name in re.findall(r'(?<![.\w])\w+(?=\()', node.layer or '')}
    return '\n'.join(f'\n{inspect.getsource(getattr(user_layers, name))}' for name in sorted(called))


def _make(program):
    lines = ['keras.utils.set_random_seed(0)']
    if any('SHARED' in (node.layer or '') for node in program.nodes):
        lines.append('SHARED = keras.random.SeedGenerator(3)')
    lines += ["if policy == 'float64':", "    keras.config.set_floatx('float64')", 'keras.config.set_dtype_policy(policy)']
    names = [f'x{number}' for number in range(len(program.inputs))]
    for name, value in zip(names, program.inputs):
        lines.append(f'{name} = keras.Input({list(value.shape)}, dtype={_dtype_of(value, program)!r}, name={name!r})')
    for number, node in enumerate(program.nodes):
        new = [f'h{len(names) + place}' for place in range(len(node.outputs))]
        layer = f'layer_{number if node.shared_with is None else node.shared_with}'
        reads = f'layer_{node.reads}'
        if node.layer is not None:
            lines.append(f'{layer} = {node.layer.format(name=layer, reads=reads)}')
        call = node.call.format(*[names[place] for place in node.inputs], layer=layer, reads=reads)
        lines.append(f'{", ".join(new)} = {call}')
        names += new
    inputs, outputs = names[:len(program.inputs)], [names[number] for number in program.outputs]
    nests = [nest_of_sources(program.nest, some, some) for some in (inputs, outputs)]
    lines.append(f'model = keras.Model({", ".join(nests)})')
    lines += [f'layer_{number}.trainable = False' for number in program.frozen]
    lines += _PERTURBATION
    lines += ["if policy.startswith('mixed'):", "    keras.config.set_dtype_policy('float32')"]
    return f'def make(policy={program.policy!r}):\n' + textwrap.indent('\n'.join([*lines, 'return model']), '    ') + '\n'


def _data(program):
    values, batch = program.values, program.batch
    inputs = [_random(value, batch.num_rows, _dtype_of(value, program)) for value in program.inputs]
    targets = [_target(values[number], program) for number in program.outputs]
    weight = None if batch.sample_weight is None else f'rng.uniform(0.5, 2.0, {[batch.num_rows, *batch.sample_weight]}).astype(\'float32\')'
    return '\n'.join(line for line in [
        'rng = np.random.default_rng(0)',
        f'x = {nest_of_sources(program.nest, [f"x{number}" for number in range(len(inputs))], inputs)}',
        f'y = {nest_of_sources(program.nest, [f"h{number}" for number in program.outputs], targets)}',
        f'sample_weight = {weight}',
        batch.loss,
        batch.optimizer,
        f'fields = {program.fields!r}',
        f'run = {program.run!r}',
        *([f"run['make_exact'] = lambda: make({_WITH_MORE_BITS.get(program.policy, 'float32')!r})"]
          if program.policy != 'float64' else []),
        *(["run['make_optimizer'] = make_optimizer"] if batch.optimizer else [])] if line) + '\n'


def _dtype_of(value, program):
    """Return the data type of an input."""
    return program.policy if (value.dtype, program.policy) == ('float32', 'float64') else value.dtype


def _target(value, program):
    num_rows = program.batch.num_rows
    if program.batch.target_dtype == 'int32':
        return _random(Value(value.shape[:-1], 'int32', limit=value.shape[-1]), num_rows, 'int32')
    return _random(Value(value.shape), num_rows, _dtype_of(Value(()), program))


def nest_of_sources(kind, names, sources):
    """Return the source of a nest of kind 'list' or 'dict'; a list of one is the one itself."""
    if kind == 'dict':
        return '{' + ', '.join(f'{name!r}: {source}' for name, source in zip(names, sources)) + '}'
    return sources[0] if len(sources) == 1 else '[' + ', '.join(sources) + ']'


def _random(value, num_rows, dtype):
    shape = [num_rows, *value.shape]
    if value.dtype == 'bool':
        return f'rng.uniform(size={shape}) < 0.5'
    if value.dtype == 'int32':
        return f"rng.integers(0, {value.limit}, {shape}).astype('int32')"
    if value.dtype == 'string':
        return f"tf.constant(rng.choice(['a', 'b', 'c', 'd'], {shape}))"
    return f'rng.normal(size={shape}).astype({dtype!r})'
