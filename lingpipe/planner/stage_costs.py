"""From the times of layers to what the stages of a schedule cost."""

from lingpipe.schedule.simulation import StageCosts

# The update reads weight, gradient and slots, and writes weight and slots.
_TIMES_OF_WEIGHTS, _TIMES_OF_SLOTS = 3, 2


def stage_costs(partitions, ends, layer_times, memories, recompute, accelerator):
    """Returns the list of `StageCosts`, one a partition, in seconds.

    Args:
        partitions: list of `PartitionPlan`.
        ends: list of the end indices of the partitions.
        layer_times: list of `LayerTime` of all layers, for one micro-batch.
        memories: list of `LayerMemory` of all layers, for one micro-batch.
        recompute: 'none', 'stage' or 'layer'.
        accelerator: `Accelerator`, for what is not the layers' time: sending and the update.
    """
    return [_costs(part, layer_times[start:end], memories[end - 1].outputs, recompute, accelerator)
            for part, start, end in zip(partitions, [0, *ends], ends)]


def _costs(part, times, output_bytes, recompute, accelerator):
    """With 'layer' a first forward pass finds the inputs of the layers, which need not be where B follows its own F, and never
    runs the last of them; a second one, inside of B, runs only what B reads of each layer."""
    forward = sum(time.forward_seconds for time in times)
    backward = sum(time.backward_seconds for time in times)
    inside = sum(time.recomputed_seconds for time in times) if recompute == 'layer' else 0.0
    ahead = {'none': 0.0, 'stage': forward, 'layer': forward - times[-1].forward_seconds}[recompute]
    moved = _TIMES_OF_WEIGHTS * part.gradients + _TIMES_OF_SLOTS * part.slots
    return StageCosts(
        forward=forward, backward=backward / 2 + inside, weight_gradient=backward / 2,
        recompute=ahead, transfer=output_bytes / accelerator.link_bandwidth,
        update=moved / accelerator.memory_bandwidth)
