"""The cells of AmoebaNet: their genotypes, and the layer that computes a cell.

A cell computes seven states. State 0 comes from the cell's input, and state 1 from the previous cell's input. Each of
the states 2 to 6 is the sum of two operations on earlier states. The output is the concatenation of some states.

Evolution found the cells B and D (Regularized Evolution for Image Classifier Architecture Search, arXiv 1802.01548).
GPipe (arXiv 1811.06965) scales these cells up. `GENOTYPES` describes the released networks. In these networks, the
output of a normal cell includes state 0. One separable 5x5 convolution of B is dilated in the paper's figure, but not
in the released network.
"""

import typing
from typing import Any

import keras

from lingpipe import hyperparams
from lingpipe.layers import amoebanet_operations, base_layer

_NUM_INPUT_STATES = 2


class CellGenotype(typing.NamedTuple):
    """The operations of a cell for states 2 to 6, and the states in its output."""
    # five pairs ((operation, state), (operation, state)); see amoebanet_operations for the operations
    combinations: tuple
    concatenation: tuple  # indices of the states that are concatenated along the channels, in this order


GENOTYPES = {  # a normal cell keeps height and width, and a reduction cell halves them
    'B': {
        'normal': CellGenotype(
            combinations=((('1x1', 1), ('max_pool_3x3', 1)),
                          (('none', 1), ('separable_3x3_2', 0)),
                          (('1x1', 1), ('separable_3x3_2', 0)),
                          (('1x1', 2), ('none', 2)),
                          (('avg_pool_3x3', 1), ('1x1', 5))),
            concatenation=(0, 3, 4, 6)),
        'reduction': CellGenotype(
            combinations=((('max_pool_2x2', 0), ('max_pool_3x3', 0)),
                          (('none', 2), ('3x3', 1)),
                          (('separable_5x5_2', 2), ('max_pool_3x3', 2)),
                          (('none', 3), ('separable_3x3_2', 1)),
                          (('avg_pool_3x3', 4), ('1x1', 3))),
            concatenation=(5, 6))},
    'D': {
        'normal': CellGenotype(
            combinations=((('1x1', 1), ('max_pool_3x3', 1)),
                          (('none', 1), ('1x7_7x1', 0)),
                          (('1x1', 0), ('1x7_7x1', 0)),
                          (('max_pool_3x3', 2), ('none', 2)),
                          (('avg_pool_3x3', 1), ('1x1', 5))),
            concatenation=(0, 3, 4, 6)),
        'reduction': CellGenotype(
            combinations=((('max_pool_2x2', 0), ('max_pool_3x3', 0)),
                          (('none', 2), ('3x3', 1)),
                          (('1x7_7x1', 2), ('max_pool_3x3', 2)),
                          (('none', 3), ('max_pool_2x2', 1)),
                          (('avg_pool_3x3', 2), ('1x1', 3))),
            concatenation=(4, 5, 6))},
}


class AmoebaNetCell(amoebanet_operations.AmoebaNetLayer):
    """A normal or reduction cell. The cell maps outputs `(out, prev)` of the previous two cells to `(new_out, out)`.

        out ---- ReLU, 1x1, batch norm ---- state 0 -+
                                                     +-- five sums of two operations -- concatenation -- new_out
        prev --- matched to state 0 ------- state 1 -+
        out ------------------------------------------------------------------------------------------- new_prev

    If `prev` differs from state 0 in height, width or channels, convolutions match it to state 0. The first cell has no
    `prev`, and uses `out` as state 1. In a reduction cell, operations on states 0 and 1 have strides 2. Drop path
    applies to all operations but 'none'.
    """

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('genotype', 'D', f'Which AmoebaNet: one of {", ".join(GENOTYPES)}.')
        p.Define('reduction', False, 'Whether the cell halves height and width.')
        p.Define('filters', None, 'Number of channels of each state.')
        p.Define('drop_path_final_keep_prob', 0.7, 'Probability, in (0, 1], of keeping an operation; see DropPath.')
        p.Define('drop_path_num_steps', None, 'Steps until that probability is reached; None: it is constant.')
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        # Keras would cast the auxiliary logits that pass through from float32 to the compute dtype.
        super().__init__(params, autocast=False, **kwargs)
        if params.genotype not in GENOTYPES:
            raise ValueError(f'AmoebaNetCell.genotype is {params.genotype!r}; '
                             f'set it to one of {", ".join(GENOTYPES)}.')
        if not 0 < params.drop_path_final_keep_prob <= 1:
            raise ValueError(f'AmoebaNetCell.drop_path_final_keep_prob is {params.drop_path_final_keep_prob}, which is '
                             'not in (0, 1]; set it to 1 to keep every path.')
        self._genotype = GENOTYPES[params.genotype]['reduction' if params.reduction else 'normal']
        self._edges = [edge for combination in self._genotype.combinations for edge in combination]
        self._strides = 2 if params.reduction else 1
        self.drop_path = amoebanet_operations.DropPath(
            params.drop_path_final_keep_prob, params.drop_path_num_steps, name='drop_path', dtype=self.dtype_policy)

    def build(self, input_shape: Any) -> None:
        out_shape, prev_shape = _out_and_prev(input_shape)[:2]
        self.input_operation = self._build_child(
            amoebanet_operations.Operation, 'state_0', out_shape, operation='1x1')
        self.match_prev, shape = self._build_match(out_shape, prev_shape)
        shapes = [amoebanet_operations.strided_shape(out_shape, 1, self.params.filters), shape]
        self.operations = self._build_operations(shapes)
        self.output_reductions = self._build_output_reductions(shapes)
        self.drop_path.build(shapes[-1])

    def _build_child(self, layer_class, name, shape, **fields):
        """Return a built layer with the settings of this cell."""
        layer = layer_class.Params().Set(
            name=name, dtype_policy=self.dtype_policy.name, batch_norm_momentum=self.params.batch_norm_momentum,
            filters=self.params.filters, **fields).Instantiate()
        layer.build(shape)
        return layer

    def _build_match(self, out_shape, prev_shape):
        """Return the layer that computes state 1 from `prev`, or None, and the shape of state 1."""
        if prev_shape is None:
            return None, out_shape  # None: state 1 is an unchanged input
        if tuple(prev_shape[1:3]) != tuple(out_shape[1:3]):
            layer = self._build_child(amoebanet_operations.FactorizedReduction, 'state_1', prev_shape, relu=True)
        elif prev_shape[3] != self.params.filters:
            layer = self._build_child(amoebanet_operations.Operation, 'state_1', prev_shape, operation='1x1')
        else:
            return None, prev_shape
        return layer, layer.compute_output_shape(prev_shape)

    def _build_operations(self, shapes):
        """Return the ten operations, and append the shapes of states 2 to 6 to `shapes`."""
        operations = []
        for edge, (operation, index) in enumerate(self._edges):
            side = 'right' if edge % 2 else 'left'
            operations.append(self._build_child(
                amoebanet_operations.Operation, f'state_{len(shapes)}_{side}', shapes[index], operation=operation,
                strides=self._strides if index < _NUM_INPUT_STATES else 1))
            if side == 'right':
                shapes.append(operations[-1].compute_output_shape(shapes[index]))
        return operations

    def _build_output_reductions(self, shapes):
        """For each concatenated state, return the layer that shrinks it to the size of state 6, or None."""

        def reduction(index):
            if shapes[index][1:3] == shapes[-1][1:3]:
                return None  # the state has this size
            return self._build_child(amoebanet_operations.FactorizedReduction, f'output_{index}', shapes[index])

        return [reduction(index) for index in self._genotype.concatenation]

    def call(self, inputs: Any, training: bool | None = None) -> tuple:
        """Compute the cell.

        Args:
            inputs: `(out, prev, *rest)`, or `out` alone for the first cell. `out`, `[batch, height, width, channels]`,
                comes from the previous cell, and `prev` from the cell before the previous cell. `rest`, such as
                auxiliary logits, passes through.

        Returns:
            `(new_out, out, *rest)`. `new_out` is `[batch, new_height, new_width, filters * num_concatenated_states]`.
        """
        out, prev, rest = _out_and_prev(inputs)
        states = [self.input_operation(out, training=training), self._match(out, prev, training)]
        scales = self._path_scales(states[0], training)
        for left in range(0, len(self.operations), 2):
            states.append(self._apply(left, states, scales, training) + self._apply(left + 1, states, scales, training))
        members = [
            states[index] if reduction is None else reduction(states[index], training=training)
            for index, reduction in zip(self._genotype.concatenation, self.output_reductions)]
        return keras.ops.concatenate(members, axis=-1), out, *rest

    def _match(self, out, prev, training):
        if self.match_prev is not None:
            return self.match_prev(prev, training=training)
        return keras.ops.cast(out if prev is None else prev, self.compute_dtype)

    def _path_scales(self, state, training):
        """For each operation, return its drop path factors `[batch, 1, 1, 1]`, or None to apply no drop path."""
        dropped = [self.drop_path.is_active(training) and operation != 'none' for operation, _ in self._edges]
        scales = iter(self.drop_path.draw_scales(state, num_paths=sum(dropped)) if any(dropped) else ())
        return [next(scales) if is_dropped else None for is_dropped in dropped]

    def _apply(self, edge, states, scales, training):
        result = self.operations[edge](states[self._edges[edge][1]], training=training)
        return result if scales[edge] is None else result * scales[edge]


def _out_and_prev(inputs):
    """Split inputs or their shapes into `out`, `prev` and the rest."""
    if not isinstance(inputs, (list, tuple)) or isinstance(inputs[0], (int, type(None))):
        return inputs, None, ()  # a single tensor or shape
    out, prev, *rest = inputs
    return out, prev, tuple(rest)
