"""What an optimizer keeps."""


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
