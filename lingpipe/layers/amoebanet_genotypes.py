"""The cells of the AmoebaNet family, as data.

A cell computes seven states. State 0 is made from the cell's input, state 1 from the input of the cell before it; each
of the states 2 to 6 is the sum of two earlier states, an operation applied to each. The output is the concatenation of
some of the states.

Found by evolution: Regularized Evolution for Image Classifier Architecture Search, arXiv 1802.01548; GPipe, arXiv
1811.06965, scales B and D up. The tables are those of the networks its authors released and counted: the output of a
normal cell of B and D includes state 0, and the dilation drawn at one separable 5x5 convolution of B is not applied.
"""

import typing


class CellGenotype(typing.NamedTuple):
    """One cell: how the states 2 to 6 are combined, and which states form the output.

    combinations: five pairs ((operation, state), (operation, state)); see amoebanet_operations for the operations.
    concatenation: indices of the states that are concatenated along the channels, in this order.
    """
    combinations: tuple
    concatenation: tuple


class Genotype(typing.NamedTuple):
    """The two cells of a network: the one that keeps the image size and the one that halves it."""
    normal: CellGenotype
    reduction: CellGenotype


GENOTYPES = {
    'A': Genotype(
        normal=CellGenotype(
            combinations=((('avg_pool_3x3', 0), ('max_pool_3x3', 0)),
                          (('separable_3x3_2', 1), ('none', 1)),
                          (('none', 0), ('avg_pool_3x3', 1)),
                          (('separable_3x3_2', 0), ('separable_5x5_2', 2)),
                          (('avg_pool_3x3', 5), ('separable_3x3_2', 0))),
            concatenation=(1, 3, 4, 6)),
        reduction=CellGenotype(
            combinations=((('separable_3x3_2', 1), ('avg_pool_3x3', 0)),
                          (('max_pool_3x3', 0), ('separable_7x7_2', 2)),
                          (('max_pool_3x3', 1), ('max_pool_3x3', 0)),
                          (('separable_3x3_2', 4), ('1x7_7x1', 0)),
                          (('avg_pool_3x3', 1), ('separable_7x7_2', 0))),
            concatenation=(2, 3, 4, 5, 6))),
    'B': Genotype(
        normal=CellGenotype(
            combinations=((('1x1', 1), ('max_pool_3x3', 1)),
                          (('none', 1), ('separable_3x3_2', 0)),
                          (('1x1', 1), ('separable_3x3_2', 0)),
                          (('1x1', 2), ('none', 2)),
                          (('avg_pool_3x3', 1), ('1x1', 5))),
            concatenation=(0, 3, 4, 6)),
        reduction=CellGenotype(
            combinations=((('max_pool_2x2', 0), ('max_pool_3x3', 0)),
                          (('none', 2), ('3x3', 1)),
                          (('separable_5x5_2', 2), ('max_pool_3x3', 2)),
                          (('none', 3), ('separable_3x3_2', 1)),
                          (('avg_pool_3x3', 4), ('1x1', 3))),
            concatenation=(5, 6))),
    'C': Genotype(
        normal=CellGenotype(
            combinations=((('avg_pool_3x3', 0), ('separable_3x3_2', 0)),
                          (('none', 0), ('separable_3x3_2', 0)),
                          (('avg_pool_3x3', 2), ('separable_3x3_2', 1)),
                          (('none', 0), ('separable_3x3_2', 1)),
                          (('avg_pool_3x3', 3), ('separable_3x3_2', 0))),
            concatenation=(1, 2, 4, 5, 6)),
        reduction=CellGenotype(
            combinations=((('max_pool_3x3', 0), ('max_pool_3x3', 0)),
                          (('separable_7x7_2', 2), ('separable_3x3_2', 0)),
                          (('separable_7x7_2', 0), ('max_pool_3x3', 1)),
                          (('separable_5x5_2', 4), ('separable_5x5_2', 4)),
                          (('max_pool_3x3', 1), ('separable_3x3_2', 1))),
            concatenation=(0, 2, 3, 4, 5, 6))),
    'D': Genotype(
        normal=CellGenotype(
            combinations=((('1x1', 1), ('max_pool_3x3', 1)),
                          (('none', 1), ('1x7_7x1', 0)),
                          (('1x1', 0), ('1x7_7x1', 0)),
                          (('max_pool_3x3', 2), ('none', 2)),
                          (('avg_pool_3x3', 1), ('1x1', 5))),
            concatenation=(0, 3, 4, 6)),
        reduction=CellGenotype(
            combinations=((('max_pool_2x2', 0), ('max_pool_3x3', 0)),
                          (('none', 2), ('3x3', 1)),
                          (('1x7_7x1', 2), ('max_pool_3x3', 2)),
                          (('none', 3), ('max_pool_2x2', 1)),
                          (('avg_pool_3x3', 2), ('1x1', 3))),
            concatenation=(4, 5, 6))),
}
