"""Gradients of boundary tensors, from the stages that read a tensor back to the one that made it."""

import tensorflow as tf

from lingpipe.devices import device_kinds


class BoundaryGradients:
    """Collects what comes back for the outputs of each stage, until that stage takes it.

    ::

        stage 0 ─ output ─┬─> stage 1        add([(0, 0)], m, [gradient]) from stages 1 and 2,
              ^           └─> stage 2        take(0, m, outputs) returns their sum
              └── sum of the two gradients
    """

    def __init__(self):
        self._parts, self._functions = {}, {}

    def copy(self):
        """Returns a copy that goes on by itself."""
        copy = BoundaryGradients()
        copy._functions = self._functions
        copy._parts = {key: {position: list(parts) for position, parts in gradients.items()}
                       for key, gradients in self._parts.items()}
        return copy

    def add(self, sources, micro_batch, gradients):
        """Hands in gradients.

        Args:
            sources: pairs (producer, position), one a gradient: which output of which stage it belongs to.
            micro_batch: number of the micro-batch.
            gradients: list of tensors.
        """
        for (producer, position), gradient in zip(sources, gradients):
            self._parts.setdefault((producer, micro_batch), {}).setdefault(position, []).append(gradient)

    def take(self, producer, micro_batch, outputs, device):
        """Returns the sum for every differentiable output, and forgets it; an output that nothing reads has gradient 0.

        Args:
            producer: index of the stage that made the outputs.
            micro_batch: number of the micro-batch.
            outputs: `Boundary` of the outputs.
            device: name of the device that they are on.
        """
        parts = self._parts.pop((producer, micro_batch), {})
        return [self._sum(parts.get(position, []), outputs.values[position], device)
                for position in outputs.differentiable_positions]

    def _sum(self, parts, output, device):
        if not parts:
            return self._call(device, tf.zeros_like, output)
        return parts[0] if len(parts) == 1 else self._call(device, tf.add_n, parts)

    def _call(self, device, function, argument):
        if (device, function) not in self._functions:
            self._functions[device, function] = device_kinds.operations(device, function)
        with tf.device(device):
            return self._functions[device, function](argument)
