"""Step times that the planner predicts from measured times of layers, beside the times of real steps.

A device is one core here: TensorFlow runs every operation on one thread. A process of K devices is bound to K cores, so
a pipeline of one partition does not use two cores. Unlike accelerators, cores share memory bandwidth and caches. So for
K devices, K processes measure the layers at once, each bound to its own core::

    core 0   layer 0 F B | layer 1 F B | ...      what a layer takes on one of two devices
    core 1   layer 0 F B | layer 1 F B | ...
"""

import contextlib
import os
import statistics

from benchmarks.memory import isolated_partition
from benchmarks.support import common, models
from lingpipe import schedules
from lingpipe.devices import device_kinds
from lingpipe.partition import accelerators, layer_profile
from lingpipe.pipeline import layer_sources
from lingpipe.planner import plans, resolution


def predicted_and_measured(configurations, num_turns):
    """Let every configuration do a step, and all layers be measured, in each of several turns.

    What else happens on the machine meets all of them so. For each the fastest of its turns counts.

    Args:
        configurations: list of tuples (schedule, num_partitions, num_micro_batches, recompute).
        num_turns: how often.

    Returns:
        Pair of lists of seconds, predicted and measured.
    """
    with contextlib.ExitStack() as stack:
        steps = [stack.enter_context(
            common.Process(isolated_partition.steps, *configuration, num_cores=configuration[1]))
                 for configuration in configurations]
        groups = {num_partitions: [stack.enter_context(common.Process(predicted_times, configurations, core))
                                   for core in range(num_partitions)]
                  for num_partitions in {num_partitions for _, num_partitions, _, _ in configurations}}
        for process in steps:
            process.next()  # lays out the graph
        turns = [(
            [process.next() for process in steps], {count: _mean_answer(group) for count, group in groups.items()})
                 for _ in range(num_turns)]
    measured = [min(seconds) for seconds in zip(*[seconds for seconds, _ in turns])]
    return [turns[-1][1][configuration[1]][index] for index, configuration in enumerate(configurations)], measured


def _mean_answer(group):
    """Let processes work at once; return the mean of what they answer, entry by entry."""
    for process in group:
        process.ask()
    return list(map(statistics.fmean, zip(*[process.answer() for process in group])))


def predicted_times(configurations, core):
    """Measure the layers on one core again and again; yield predicted seconds, from their least times so far."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [cores[core % len(cores)]])
    device_kinds.use_virtual_devices(1)
    problem = models.problem()
    sizes = sorted({-(-problem.x.shape[0] // num_micro_batches) for _, _, num_micro_batches, _ in configurations})
    stack = resolution.LayerStack(layer_sources.LayersOfParams(problem.layers), models.input_specs(problem), sizes)
    fastest = {}
    setting = plans.Setting(stack, accelerators.CPU, None, 0, 'float32', fastest.get)
    while True:
        for size in sizes:
            times = layer_profile.profile_layers(
                stack.source.params, stack.micro_batch_specs(size), '/device:CPU:0', None, stack.analyses)
            fastest[size] = faster_layers(fastest.get(size, times), times)
        yield [plans.make_plan(setting, schedules.make_schedule(name, num_partitions, num_micro_batches),
                               recompute).step_time
               for name, num_partitions, num_micro_batches, recompute in configurations]


def faster_layers(times, others):
    """Return the list of the lesser `LayerTime`s of two lists, forward and backward passes each by themselves."""
    return [layer_profile.LayerTime(*map(min, zip(*pair))) for pair in zip(times, others)]


def relative_rows(configurations, predicted, measured):
    """Compare times over those of the first configuration.

    Args:
        configurations: see `predicted_and_measured`.
        predicted: list of seconds, one per configuration.
        measured: list of seconds, one per configuration.

    Returns:
        List of table rows, and the list of measured over predicted of all configurations but the first, which is 1.
    """
    rows, ratios = [], []
    for configuration, expected, got in zip(configurations, predicted, measured):
        expected_share, share = expected / predicted[0], got / measured[0]
        ratios.append(share / expected_share)
        rows.append([*configuration, f'{1000 * expected:.0f}', f'{1000 * got:.0f}', f'{expected_share:.2f}',
                     f'{share:.2f}', f'{ratios[-1]:.2f}'])
    return rows, ratios[1:]


HEADER = ['schedule', 'K', 'M', 'recompute', 'predicted ms', 'measured ms', 'predicted / first row',
          'measured / first row', 'measured / predicted']
