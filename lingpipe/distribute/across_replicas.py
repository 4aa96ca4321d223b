"""Sums over pipelines whose steps are built one by one: the replicas of a TPU system, or the workers of a cluster.

Code that lays out a step says where a sum over all of them belongs; where there is one pipeline it costs nothing.
"""

from lingpipe.distribute import device_kinds, logical_cores, workers


def sum_over_replicas(device, tensors):
    """Adds tensors up over all that train together, on their device; one alone gets them back as they are.

    Args:
        device: name of the device that the tensors are on.
        tensors: nest of tensors.

    Returns:
        Nest of tensors, the same everywhere, bit for bit.
    """
    if device_kinds.is_logical_core(device):
        return logical_cores.sum_over_replicas(device, tensors)
    return workers.current().sum(device, tensors)


def num_replicas(device):
    """Returns over how many `sum_over_replicas` adds up on a device."""
    return logical_cores.num_replicas(device) if device_kinds.is_logical_core(device) else workers.current().count


def agree_on(device, aggregation, before, after):
    """Makes one state of what each made of its share of a mini-batch, where a layer keeps more than weights.

    Args:
        device: name of the device that the tensors are on.
        aggregation: that of the Keras variable: 'mean', 'sum' of the changes, else that of the first counts.
        before: tensor, the state before the step, the same everywhere.
        after: tensor, the state that the share led to.

    Returns:
        Tensor like `after`, the same on all workers. (Each replica of a TPU system keeps its own.)
    """
    these = workers.current()
    if these.count == 1 or device_kinds.is_logical_core(device):
        return after
    if aggregation == 'mean':
        return these.sum(device, after) / these.count
    if aggregation == 'sum':
        return before + these.sum(device, after - before)
    return these.of_chief(device, after)
