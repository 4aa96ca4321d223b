"""The variables that the layers of an SPMD pipeline read."""

from collections.abc import Callable
from typing import Any, NamedTuple


class SpmdValues(NamedTuple):
    """All variables of a pipeline that layers read, or a value for each.

    Attributes:
        stages: list of tensors `[K, V, ...]`, each with one weight of every stage, core by core and round by round.
        outer: list of tensors, the other weights.
        stage_state: list of tensors `[K, V, ...]`, each with one variable of every stage that is not trained, such as a
            moving average.
        outer_state: list of tensors, the other variables that are not trained.
    """

    stages: list
    outer: list
    stage_state: list
    outer_state: list

    def map(self, of_stages: Callable[[Any], Any], of_outer: Callable[[Any], Any]) -> 'SpmdValues':
        """Returns the same lists with one function applied to values of stages, and another to the rest."""
        return SpmdValues(list(map(of_stages, self.stages)), list(map(of_outer, self.outer)),
                          list(map(of_stages, self.stage_state)), list(map(of_outer, self.outer_state)))
