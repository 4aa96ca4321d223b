"""What an optimizer keeps, and for which weight."""

import keras

from lingpipe.devices import device_kinds, variable_placement


def parts_of(optimizer):
    """Lists the optimizers that keep slots: the optimizer itself, or those that a wrapper of Keras's hands its work to.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return parts_of(optimizer.inner_optimizer)
    return list(optimizer.optimizers) if isinstance(optimizer, keras.optimizers.MultiOptimizer) else [optimizer]


def move_slots(optimizer):
    """Moves what an optimizer keeps for each weight to the device of the weight.

    Keras makes most slots there, but not all of them (Adafactor's factors), and not after the weight has moved. What belongs to
    a weight is told by the lists that have an entry a weight.

    Args:
        optimizer: `keras.optimizers.Optimizer`; without slots nothing happens.
    """
    for part in parts_of(optimizer):
        for slot, weight in _slots(part):
            device = variable_placement.device_of(weight)
            if not device_kinds.is_logical_core(device):
                variable_placement.move(slot, device)


def _slots(optimizer):
    """Returns pairs (slot, weight)."""
    weights = optimizer._trainable_variables
    own = (weights, optimizer._variables)
    lists = [kept for kept in vars(optimizer).values() if isinstance(kept, (list, tuple)) and len(kept) == len(weights)
             and not any(kept is one for one in own)]
    return [(slot, weight) for kept in lists for slot, weight in zip(kept, weights)
            if isinstance(slot, keras.Variable) and slot is not weight]


def refuse_all_but_slots(optimizer, slots, place):
    """Raises ValueError where an optimizer has variables that no weight owns, which a compiled program cannot hold.

    Args:
        optimizer: built `keras.optimizers.Optimizer`.
        slots: list of its variables that belong to a weight.
        place: what cannot hold the others, for the message.
    """
    known = {id(variable) for variable in [*slots, optimizer._iterations, optimizer._learning_rate]}
    others = [variable.name for variable in optimizer.variables if id(variable) not in known]
    if others:
        raise ValueError(
            f'The optimizer {type(optimizer).__name__} keeps {others[:3]} beside slots of the shapes of the weights, which {place} '
            'cannot hold. Choose another, such as SGD, Adam or AdamW.')
