"""The functions of one stage for one set of shapes: forward, and backward with or without recomputation."""

import functools

import tensorflow as tf

from lingpipe.pipeline import graph_pieces


class StageProgram:
    """Forward and backward of one stage, cut from one traced graph.

    ::

        forward                     inputs, variables, targets             -> outputs, statistics, state, metrics
        forward, keeping residuals  the same                               -> the same, residuals
        backward, recomputing       inputs, variables, gradients, sums     -> input gradients, sums + weight gradients
        backward from residuals     residuals, variables, gradients, sums  -> the same

    Sums of weight gradients over micro-batches travel through the backward function: never more than one copy is held.

    Args:
        stage: the `Stage`.
        inputs: nest of `tf.TensorSpec` of one micro-batch.
        targets: nest of `tf.TensorSpec`, or () where there is no loss.
        loss: function `(targets, outputs) -> {name: (mean, weight)}`, or None.
        training: Python boolean.
    """

    def __init__(self, stage, inputs, targets, loss, training):
        self._name = f'stage_{stage.index}'
        variables = stage.variables(training)
        specs = {
            'inputs': inputs, 'targets': targets, 'statistics': stage.statistics(training).spec,
            'values': variables.map(lambda variable: tf.TensorSpec(variable.shape, variable.dtype)),
            'position': tf.TensorSpec([4], tf.int64)}
        self._results = {}
        function = tf.function(_trace_function(stage, loss, training, self._results), autograph=False)
        self._graph = function.get_concrete_function(**specs).graph
        self._arguments = _arguments(self._graph, specs)
        self._pieces = {}

    def forward(self, arguments, keep_residuals):
        """Lays out the forward action in the current graph.

        Args:
            arguments: dictionary with the values of `inputs`, `targets`, `statistics`, `values` (a `Variables`) and `position`, an
                int64 tensor of seed, step, number of the micro-batch, and rows in the micro-batches before it.
            keep_residuals: whether the backward action will start from what this action computed.

        Returns:
            Dictionary with `outputs`, `statistics`, `state`, `metrics`, `residuals` and the call `operation`.
        """
        results = self._results['forward']
        residuals = self._residuals if keep_residuals else self._unrepeatable
        piece = self._piece('forward', keep_residuals, tf.nest.flatten(results) + residuals, self._side_effects)
        computed, operation = piece(self._feed(arguments))
        found = tf.nest.map_structure(lambda tensor: computed[tensor.ref()], results)
        return dict(found, residuals={tensor.ref(): computed[tensor.ref()] for tensor in residuals}, operation=operation)

    def backward(self, arguments, residuals, output_gradients, sums, input_gradients_needed):
        """Lays out the backward action in the current graph.

        Args:
            arguments: what `forward` got.
            residuals: the residuals that `forward` returned; what they do not hold is recomputed.
            output_gradients: list of the gradients of the floating-point outputs, or of the loss.
            sums: list of the sums of weight gradients over the micro-batches so far.
            input_gradients_needed: whether to compute the gradients of the inputs.

        Returns:
            List of the gradients of the floating-point inputs, the list of the new sums, and the call operation.
        """
        results = self._results['backward']
        wanted = (results['input_gradients'] if input_gradients_needed else []) + results['sums']
        piece = self._piece('backward', (frozenset(residuals), input_gradients_needed), wanted,
                            feeds=[ref.deref() for ref in residuals])
        given = zip(self._given(), output_gradients + sums)
        computed, operation = piece({**self._feed(arguments), **{inner.ref(): outer for inner, outer in given}, **residuals})
        values = [computed[tensor.ref()] for tensor in wanted]
        split = len(values) - len(sums)
        return values[:split], values[split:], operation

    def _feed(self, arguments):
        return {inner.ref(): outer for name, tensors in self._arguments.items()
                for inner, outer in zip(tensors, tf.nest.flatten(arguments[name]))}

    def _given(self):
        return self._results['backward']['given_gradients'] + self._results['backward']['given_sums']

    def _all_arguments(self):
        return [tensor for tensors in self._arguments.values() for tensor in tensors]

    def _piece(self, kind, variant, outputs, side_effects=(), feeds=()):
        if (kind, variant) not in self._pieces:
            feeds = [*self._all_arguments(), *(self._given() if kind == 'backward' else []), *feeds]
            self._pieces[kind, variant] = graph_pieces.GraphPiece(
                self._graph, feeds, outputs, side_effects, f'{self._name}_{kind}')
        return self._pieces[kind, variant]

    @functools.cached_property
    def _backward_operations(self):
        return graph_pieces.descendants(self._graph, self._given())

    @functools.cached_property
    def _side_effects(self):
        later = self._backward_operations
        return [operation for operation in self._graph.get_operations()
                if operation.op_def.is_stateful and operation not in later]

    @functools.cached_property
    def _residuals(self):
        """What the forward pass computes from its arguments and the backward pass reads."""
        later = self._backward_operations
        fed = {tensor.ref() for tensor in self._all_arguments()}
        from_arguments = graph_pieces.descendants(self._graph, self._all_arguments() + self._unrepeatable)
        needed = self._backward_ancestors
        read = {tensor.ref(): tensor for operation in self._graph.get_operations() if operation in later & needed
                for tensor in operation.inputs}
        return [tensor for ref, tensor in read.items()
                if tensor.op not in later and tensor.op in from_arguments and ref not in fed]

    @functools.cached_property
    def _unrepeatable(self):
        """What the backward pass needs and might come out differently a second time, such as tf.random.uniform's numbers."""
        operations = self._backward_ancestors - self._backward_operations
        return [tensor for operation in self._graph.get_operations() if operation in operations
                for tensor in operation.outputs if operation.op_def.is_stateful and operation.type != 'ReadVariableOp']

    @functools.cached_property
    def _backward_ancestors(self):
        return graph_pieces.ancestors(
            self._results['backward']['input_gradients'] + self._results['backward']['sums'])


def _trace_function(stage, loss, training, results):
    """Returns the function to trace; it leaves its tensors in `results`, since a return value would be a copy of them."""

    def trace(inputs, targets, statistics, values, position):
        sources = _floats(inputs) + values.weights
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            outputs, new_statistics, state = stage.call(inputs, values, position[:2], position[2], training)
            metrics = {} if loss is None else _sums(loss(targets, outputs))
            differentiated = _floats(outputs) if loss is None else [metrics['loss'][0]]
        is_empty = _is_empty(inputs)
        merged = stage.statistics(training).merge(
            statistics, new_statistics, _share_of_rows(inputs, position[3]), is_empty)
        results['forward'] = {'outputs': outputs, 'statistics': merged, 'state': state, 'metrics': metrics}
        results['backward'] = _backward(tape, differentiated, sources, len(values.weights), is_empty)

    return trace


def _backward(tape, differentiated, sources, num_weights, is_empty):
    given_gradients = [tf.compat.v1.placeholder(tensor.dtype, tensor.shape) for tensor in differentiated]
    gradients = tape.gradient(
        differentiated, sources, given_gradients, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    split = len(sources) - num_weights
    input_gradients, weight_gradients = gradients[:split], _zero_where(is_empty, gradients[split:])
    given_sums = [tf.compat.v1.placeholder(tensor.dtype, tensor.shape) for tensor in sources[split:]]
    return {
        'given_gradients': given_gradients, 'given_sums': given_sums, 'input_gradients': input_gradients,
        'sums': [total + gradient for total, gradient in zip(given_sums, weight_gradients)]}


def _is_empty(inputs):
    """Whether this micro-batch has no rows, which batch norm answers with NaN; None where it is known to have some."""
    first = tf.nest.flatten(inputs)[0]
    return None if first.shape[0] else tf.equal(tf.shape(first)[0], 0)


def _zero_where(is_empty, gradients):
    if is_empty is None:
        return gradients
    return [tf.where(is_empty, tf.zeros([], gradient.dtype), gradient) for gradient in gradients]


def _floats(nest):
    return [tensor for tensor in tf.nest.flatten(nest) if tensor.dtype.is_floating]


def _sums(metrics):
    """Means and weights become sums and weights, which add up over micro-batches; an empty one has no mean, and sum 0."""
    sums = {}
    for name, (mean, weight) in metrics.items():
        weight = tf.cast(weight, tf.float32)
        sums[name] = tf.math.multiply_no_nan(tf.cast(mean, tf.float32), weight), weight
    return sums


def _share_of_rows(inputs, rows_before):
    rows = tf.shape(tf.nest.flatten(inputs)[0], tf.int64)[0]
    return tf.cast(tf.math.divide_no_nan(tf.cast(rows, tf.float64), tf.cast(rows_before + rows, tf.float64)), tf.float32)


def _arguments(graph, specs):
    """Names the function's input tensors by the parameter they belong to."""
    tensors, arguments = list(graph.inputs), {}
    for name, nest in specs.items():
        count = len(tf.nest.flatten(nest))
        arguments[name], tensors = tensors[:count], tensors[count:]
    return arguments
