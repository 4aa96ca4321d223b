"""What a planner must know about the layers of a model: found once, for any number of partitions and micro-batches."""

import numpy as np
import tensorflow as tf

from lingpipe.pipeline import analysis, layer_memory
from lingpipe.pipeline.layer_profile import LayerTime


class LayerStack:
    """The layers of a model with their sizes; nothing is allocated. Equal layers are looked at once.

    Args:
        layer_params: list of InstantiableParams of Keras layers.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input, every dimension known.
        micro_batch_sizes: the sizes of micro-batches, in examples, that will be asked for.
        dtype_policy: name of the policy of layers that name none, or None.

    Attributes:
        analyses: list of `LayerAnalysis`.
        batch_size: examples in a mini-batch.
    """

    def __init__(self, layer_params, input_specs, micro_batch_sizes, dtype_policy=None):
        self._layer_params = analysis.named_layer_params(layer_params, dtype_policy)
        self._input_specs = input_specs
        self._known_sizes = min(micro_batch_sizes), max(micro_batch_sizes)
        self.analyses = analysis.analyse_layers(self._layer_params, input_specs)
        self.batch_size = tf.nest.flatten(input_specs)[0].shape[0]
        self._memories = {}

    def __len__(self):
        return len(self.analyses)

    def memories(self, micro_batch_size):
        """Returns the list of `LayerMemory` for micro-batches of a size; a loss keeps as much as the last outputs.

        Layers are traced for the smallest and the largest size only. Sizes between them lie on the line through both.
        """
        if micro_batch_size not in self._memories:
            self._memories[micro_batch_size] = self._find_memories(micro_batch_size)
        return self._memories[micro_batch_size]

    def least_times(self, micro_batch_size, accelerator, dtype):
        """Returns the list of `LayerTime`: the least that an accelerator needs for a micro-batch of a size.

        An operation takes as long as its arithmetic or as moving its data, whichever is longer (the roofline model, Williams
        et al., CACM 52(4), 2009); here a layer counts as one operation that reads its weights and inputs and writes what it
        keeps. A backward pass counts as two forward passes, and what it recomputes as a whole one.
        """
        times = []
        for layer, memory in zip(self.analyses, self.memories(micro_batch_size)):
            arithmetic = layer.flops.total * micro_batch_size / accelerator.peak_flops(dtype)
            moved = memory.weights + memory.state + memory.inputs + memory.internals + memory.outputs
            seconds = max(arithmetic, moved / accelerator.memory_bandwidth)
            times.append(LayerTime(seconds, 2 * seconds, seconds))
        return times

    def micro_batch_specs(self, micro_batch_size):
        """Returns the nest of `tf.TensorSpec` of the input of a micro-batch."""
        return tf.nest.map_structure(
            lambda spec: tf.TensorSpec([micro_batch_size, *spec.shape[1:]], spec.dtype), self._input_specs)

    @property
    def layer_params(self):
        """List of the layers' params, in which every layer has a name."""
        return self._layer_params

    def _find_memories(self, micro_batch_size):
        small, large = self._known_sizes
        if micro_batch_size in (small, large):
            *others, last = layer_memory.layer_memories(self._layer_params, self.micro_batch_specs(micro_batch_size))
            with_loss = {field: getattr(last, field) + last.outputs for field in ('internals', 'recomputed')}
            return [*others, last._replace(**with_loss)]
        low, high = np.array(self.memories(small)), np.array(self.memories(large))
        between = low + (high - low) * (micro_batch_size - small) // (large - small)
        return [layer_memory.LayerMemory(*row) for row in between.tolist()]
