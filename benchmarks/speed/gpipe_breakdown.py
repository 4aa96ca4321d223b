"""Where the time of a step goes, in the rows of GPipe's own table (NeurIPS 2019), beside the published shares.

    python -m benchmarks.speed.gpipe_breakdown

By the planner: AmoebaNet-D(18, 256) on two cores of a TPU, on the least times that the accelerator allows. Here: a
small AmoebaNet-D on as many processor cores as there are partitions, as measured inside the graph.
"""

import dataclasses

import tensorflow as tf
from absl import app, flags

from benchmarks.support import common, models
from lingpipe import schedules
from lingpipe.devices import device_kinds
from lingpipe.layers import amoebanet
from lingpipe.pipeline import layer_sources
from lingpipe.planner import accelerators, plans, resolution
from lingpipe.schedules import timeline as timelines
from lingpipe.tools.trace import action_times, trace_breakdown

_NUM_PARTITIONS = flags.DEFINE_integer(
    'num_partitions', 2, 'Partitions K; the published shares are those of 2.', lower_bound=1)
_COUNTS = flags.DEFINE_list('counts', ['32'], "Micro-batches M of the planner's columns.")
_PARTITION_BY = flags.DEFINE_list('partition_by', ['flops', 'time'], "What the planner's cuts balance.")
_PLANNED_BATCH_SIZE = flags.DEFINE_integer(
    'planned_batch_size', 128, "Examples in a step of the planner's.", lower_bound=1)
_ACCELERATOR = flags.DEFINE_string('accelerator', 'v3', 'Accelerator to plan for.')
_NUM_STEPS = flags.DEFINE_integer('num_steps', 5, 'Steps measured here; 0 for none.', lower_bound=0)
_NUM_STEPS_TO_WARM_UP, _NUM_SLOTS = 2, 2

# Per cent of the step, by the fields of `Breakdown`; what GPipe calls set-up stands beside transfer.
PUBLISHED = trace_breakdown.Breakdown(compute=65.6, recompute=22.5, bubble=4.1, imbalance=3.2, transfer=2.9, update=1.7)


def planned(stack, num_partitions, num_micro_batches, accelerator, partition_by):
    """Returns the `Breakdown` of a step by the planner, with recompute='stage' and two slots a weight.

    Args:
        stack: `LayerStack` of the model.
        num_partitions: K.
        num_micro_batches: M.
        accelerator: `Accelerator`; its memory does not limit the cut.
        partition_by: what the cut balances: 'flops', or 'time', here the least that the accelerator allows.
    """
    schedule = schedules.gpipe(num_partitions, num_micro_batches)
    setting = plans.Setting(stack, accelerator, None, _NUM_SLOTS)
    timeline = plans.make_plan(setting, schedule, 'stage', partition_by).timeline
    end = max(span.end for span in timeline.spans)
    return trace_breakdown.breakdown(
        timelines.StepTimes(schedule, timeline.spans, tuple((end, end + update) for update in timeline.updates)))


def measure():
    """Measures steps of the model that the flags describe, their updates left out.

    Yields:
        The mean `Breakdown` as a dictionary.
    """
    device_kinds.use_virtual_devices(_NUM_PARTITIONS.value)
    problem = models.problem()
    pipe = models.build_pipe(problem, num_partitions=_NUM_PARTITIONS.value, recompute='stage')
    pipe.observer = action_times.ActionTimes()
    run = models.observed_step(problem, pipe)
    stamps = [run(problem.x, problem.y_true).numpy() for _ in range(_NUM_STEPS_TO_WARM_UP + _NUM_STEPS.value)]
    steps = [timelines.StepTimes(pipe.schedule, pipe.observer.spans(pipe.schedule, step))
             for step in stamps[_NUM_STEPS_TO_WARM_UP:]]
    yield dataclasses.asdict(trace_breakdown.mean_breakdown(steps))


def _measured():
    with common.Process(measure, num_cores=_NUM_PARTITIONS.value) as process:
        found = process.next()
    return {name: 'not measured' if name == 'update' else f'{share:.1f}' for name, share in found.items()}


def _planned_columns():
    spec, counts = tf.TensorSpec([_PLANNED_BATCH_SIZE.value, 224, 224, 3]), list(map(int, _COUNTS.value))
    source = layer_sources.LayersOfParams(amoebanet.amoebanet_layers('D', 18, 256, num_classes=1000))
    stack = resolution.LayerStack(source, spec, [-(-spec.shape[0] // count) for count in counts])
    accelerator = accelerators.find(_ACCELERATOR.value)
    return {f'cut by {partition_by}, M={count} %': _shares(
        planned(stack, _NUM_PARTITIONS.value, count, accelerator, partition_by))
            for partition_by in _PARTITION_BY.value for count in counts}


def _shares(parts):
    return {name: f'{share:.1f}' for name, share in dataclasses.asdict(parts).items()}


def main(unused_argv):
    columns = {'published %': _shares(PUBLISHED), **_planned_columns()}
    if _NUM_STEPS.value:
        columns['measured here %'] = _measured()
    rows = [[name, *(column[name] for column in columns.values())] for name in columns['published %']]
    common.report(
        common.markdown_table(['part', *columns], rows),
        f'K={_NUM_PARTITIONS.value}, recompute=stage. Planned: AmoebaNet-D(18, 256), 224 x 224, batch '
        f'{_PLANNED_BATCH_SIZE.value}, accelerator {_ACCELERATOR.value}.')


if __name__ == '__main__':
    app.run(main)
