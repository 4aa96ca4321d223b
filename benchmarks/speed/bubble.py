"""Shows that a pipeline waits as long as its schedule says, and no longer: its bubble as measured and as simulated.

    python -m benchmarks.speed.bubble --model=decoder
    python -m benchmarks.speed.bubble --model=decoder --schedules=zb_h1 --waiting_partitions= --num_steps=30

Every row has its own process. A model's process is bound to one core a partition; partitions that only wait need no
core. The simulations use the times of the step that they are compared with. 'simulated' uses the mean time of each kind
of action in each partition; 'own times' uses every action's own time.
"""

import time

import keras
import tensorflow as tf
from absl import app, flags

from benchmarks.support import common, models
from lingpipe import schedules
from lingpipe.devices import device_kinds
from lingpipe.layers import keras_params
from lingpipe.schedules import simulation, timeline
from lingpipe.tools import action_times, traced

_NUM_PARTITIONS = flags.DEFINE_integer(
    'num_partitions', 2, "Devices K of the model's pipeline, each of one core.", lower_bound=1)
_WAITING_PARTITIONS = flags.DEFINE_list(
    'waiting_partitions', ['2', '4'], 'Devices K of pipelines that only wait; empty for none.')
_MILLISECONDS = flags.DEFINE_float(
    'milliseconds', 20.0, 'What F, B and W take on a device that only waits.', lower_bound=0.0)
_SCHEDULES = flags.DEFINE_list('schedules', list(schedules.SCHEDULES), "Values of GPipeLayer's field to measure.")
_RECOMPUTE = flags.DEFINE_list(
    'recompute', ['none', 'stage'], "Values of GPipeLayer's field to measure with the model.")
_NUM_VIRTUAL_STAGES = flags.DEFINE_integer('num_virtual_stages', 2, 'Stages V on each device where they interleave.')
_NUM_STEPS = flags.DEFINE_integer('num_steps', 15, 'Measured steps, of which the median counts.', lower_bound=1)

_NUM_STEPS_TO_WARM_UP = 2
_WAITING_UNITS = 4


class Wait(keras.layers.Layer):
    """Passes its input on after a while, and the gradients after as long for its input and again for its weight.

    Devices that wait share no processor. F, B and W of a split backward pass take the same time. Where nobody wants the
    gradient of its input, a W takes both::

        forward    x ─> wait ─> * scale ─> outputs
        backward   gradient ─> wait ─┬─> * scale ─> gradient by x         B
                                     └─> wait ─> gradient by scale        W

    Sleeping is stateful, and what is stateful is never recomputed: its B takes as long with recomputation as without.

    Args:
        milliseconds: time of each of the three.
    """

    def __init__(self, milliseconds, **kwargs):
        super().__init__(**kwargs)
        self.milliseconds = milliseconds

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(), initializer='ones', name='scale')

    def call(self, inputs):
        seconds = self.milliseconds / 1000

        @tf.custom_gradient
        def wait(x, scale):
            waited = _sleep(x, seconds)

            def gradient(upstream):
                upstream = _sleep(upstream, seconds)
                return upstream * scale, tf.reduce_sum(_sleep(upstream, seconds) * waited)

            return waited * scale, gradient

        return wait(inputs, tf.convert_to_tensor(self.scale))

    def compute_output_shape(self, input_shape):
        return input_shape


def _sleep(x, seconds):
    def sleep(value):
        time.sleep(seconds)
        return value

    return tf.ensure_shape(tf.numpy_function(sleep, [x], x.dtype), x.shape)


def model_bubble(schedule, recompute):
    """Measure the pipeline of the model that the flags describe.

    Yields:
        What `_measure` returns.
    """
    device_kinds.use_virtual_devices(_NUM_PARTITIONS.value)
    problem = models.problem()
    yield _measure(problem, models.build_pipe(
        problem, num_partitions=_NUM_PARTITIONS.value, schedule=schedule, recompute=recompute,
        num_virtual_stages=_virtual_stages(schedule)))


def waiting_bubble(schedule, num_partitions, num_micro_batches):
    """Measure a pipeline of layers that only wait, one per stage.

    Yields:
        What `_measure` returns.
    """
    device_kinds.use_virtual_devices(num_partitions)
    virtual = _virtual_stages(schedule)
    problem = _waiting_problem(num_partitions * virtual, _MILLISECONDS.value / virtual, num_micro_batches)
    yield _measure(problem, models.build_pipe(
        problem, num_partitions=num_partitions, schedule=schedule, recompute='none', num_virtual_stages=virtual,
        partition_by=list(range(1, num_partitions * virtual + 1))))


def _virtual_stages(schedule):
    return schedules.NUM_VIRTUAL_STAGES[schedule] or _NUM_VIRTUAL_STAGES.value


def _waiting_problem(num_layers, milliseconds, num_micro_batches):
    layers = [keras_params.KerasParams(Wait, milliseconds=milliseconds, name=f'wait_{index}')
              for index in range(num_layers)]
    x = tf.ones([num_micro_batches, _WAITING_UNITS])
    return models.Problem(
        layers, x, x, lambda y_true, outputs: tf.reduce_mean(tf.square(outputs - y_true), -1), num_micro_batches)


def _measure(problem, pipe):
    """Return a dictionary: milliseconds and work of a device in the median step, and the bubble's share in four
    ways."""
    pipe.grid.observer = action_times.ActionTimes()
    run = models.observed_step(problem, pipe)
    stamps = [run(problem.x, problem.y_true).numpy() for _ in range(_NUM_STEPS_TO_WARM_UP + _NUM_STEPS.value)]
    steps = [timeline.StepTimes(pipe.schedule, pipe.grid.observer.spans(pipe.schedule, step))
             for step in stamps[_NUM_STEPS_TO_WARM_UP:]]
    step = sorted(steps, key=lambda step: step.seconds)[len(steps) // 2]
    work = step.busy((*timeline.COMPUTE, timeline.RECOMPUTE))
    return {'milliseconds': 1000 * step.seconds, 'work': 1000 * work, 'measured': step.bubble_fraction,
            'simulated': traced.simulated([step]).bubble_fraction,
            'own': simulation.replay(pipe.schedule, step.durations).bubble_fraction,
            'ideal': ideal_bubble(pipe.schedule, pipe.params.recompute)}


def ideal_bubble(schedule, recompute):
    """Return the share of a step that devices wait with equal partitions, whose F, B, W and recomputation take one
    time.

    Args:
        schedule: `Schedule`.
        recompute: 'none' or 'stage'.
    """
    whole = {action for action in schedule.backwards() if not schedule.is_split(action)}
    durations = {action: 2.0 if action in whole else 1.0 for actions in schedule.device_actions for action in actions}
    if recompute == 'stage':
        recomputed = schedule.backwards() - schedule.backwards_after_own_forward()
        durations.update({action._replace(kind=timeline.RECOMPUTE): 1.0 for action in recomputed})
    return simulation.replay(schedule, [durations]).bubble_fraction


def _configurations():
    """Return, for each row of the table: its first cells, generator function, arguments, cores."""
    num_partitions, num_micro_batches = _NUM_PARTITIONS.value, models.problem().num_micro_batches
    of_model = [(
        [models.name(), num_partitions, schedule, recompute], model_bubble, [schedule, recompute], num_partitions)
                for schedule in _SCHEDULES.value for recompute in _RECOMPUTE.value]
    of_waiting = [(['waiting', count, schedule, 'none'], waiting_bubble, [schedule, count, num_micro_batches], None)
                  for count in map(int, _WAITING_PARTITIONS.value) for schedule in _SCHEDULES.value]
    return of_model + of_waiting


def _points(found):
    return 100 * (found['measured'] - found['simulated'])


def _row(cells, found):
    measured, simulated, own, ideal = [f'{100 * found[name]:.1f}' for name in ('measured', 'simulated', 'own', 'ideal')]
    return [*cells, f'{found["milliseconds"]:.0f}', f'{found["work"]:.0f}', measured, simulated,
            f'{_points(found):+.1f}', own, ideal]


def main(unused_argv):
    results = [(cells, common.measured(function, *arguments, num_cores=num_cores))
               for cells, function, arguments, num_cores in _configurations()]
    header = ['layers', 'K', 'schedule', 'recompute', 'step ms', 'work ms', 'measured %', 'simulated %', 'points',
              'own times %', 'equal %']
    largest = max(abs(_points(found)) for _, found in results)
    common.report(
        common.Table(header, [_row(*result) for result in results]),
        f'Measured and simulated differ by {largest:.1f} percentage points at most.')


if __name__ == '__main__':
    app.run(main)
