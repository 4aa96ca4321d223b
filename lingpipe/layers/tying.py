"""Layers that use a variable of another layer of their stack."""


def tie_layers(stack):
    """Shows every layer with a method `tie` the others by name, so that it finds the layer that it shares with.

    Args:
        stack: list of Keras layers that are not built yet.

    Raises:
        ValueError: a layer that is to be shared with is not there.
    """
    by_name = {layer.name: layer for layer in stack}
    for layer in stack:
        if hasattr(layer, 'tie'):
            layer.tie(by_name)
