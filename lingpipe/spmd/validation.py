"""Checks that refuse layers and numbers that an SPMD pipeline does not support."""

import collections

from lingpipe.stages import batch_statistics, stage_layers


def validate_numbers(run: tuple[int, int], num_cores: int, num_micro_batches: int, num_rounds: int,
                     recompute: str) -> None:
    """Raises ValueError if numbers and the equal layers, from `run[0]` to `run[1]`, do not fit together."""
    if run[1] - run[0] < num_cores * num_rounds:
        times = f' times num_virtual_stages={num_rounds}' if num_rounds > 1 else ''
        raise ValueError(
            f"tpu_route='spmd' needs at least num_partitions={num_cores}{times} layers in a row that are alike (equal "
            f"params, outputs shaped as inputs), but finds {run[1] - run[0]}. Set tpu_route='stage_programs', or fewer "
            'partitions.')
    if recompute in ('none', 'selective'):
        raise ValueError(f"recompute={recompute!r} does not go with tpu_route='spmd', which keeps nothing of a tick "
                         "but what entered it. Set recompute to 'stage' or 'layer', or tpu_route to 'stage_programs'.")
    if num_rounds > 1 and num_micro_batches < num_cores:
        raise ValueError(
            f"num_virtual_stages={num_rounds} with tpu_route='spmd' needs at least as many micro-batches as "
            f'partitions, but num_micro_batches={num_micro_batches} is less than num_partitions={num_cores}: a '
            f'micro-batch would come back before the last one has entered. Set num_micro_batches to {num_cores} or '
            'more, or num_virtual_stages to 1.')


def validate_stages(stages: list[stage_layers.StageLayers], outer: list[stage_layers.StageLayers]) -> None:
    """Raises ValueError if stages do not train the same kinds of variables, each its own, without constraints."""
    for part in [*stages, *outer]:
        _refuse_constraints(part)
    if len(set(map(_trained, stages))) > 1:
        raise ValueError("tpu_route='spmd' trains the same variables of all layers that are alike, but some of these "
                         "layers are set trainable=False. Set all of them so, or tpu_route='stage_programs'.")
    owners = collections.Counter(key for part in stages for key in set(map(id, _variables(part))))
    owners.update({id(variable) for part in outer for variable in _variables(part)})
    shared = [variable.path for part in stages for variable in _variables(part) if owners[id(variable)] > 1]
    if shared:
        raise ValueError(f"tpu_route='spmd' gives every stage variables of its own, but {shared[0]!r} belongs to other "
                         "layers too. Set tpu_route='stage_programs'.")


def _trained(part):
    """Returns a tuple of the trained variables' descriptions, in the order of the layers."""
    norms = batch_statistics.batch_norms(part.layers)
    return (*[variable.trainable for layer in part.layers for variable in layer.variables],
            *[norm.trainable for norm in norms])


def _variables(part):
    return [variable for kind in part.variables() for variable in kind]


def _refuse_constraints(part):
    constrained = [variable.path for variable in part.trainable_variables if variable.constraint]
    if constrained:
        raise ValueError(f"tpu_route='spmd' takes weights without constraint, but {constrained[:3]} have one. Leave it "
                         "out, or set tpu_route='stage_programs'.")
