"""Thirty defects that a careless change could make, each a small change of the source that some test has to find."""

from typing import NamedTuple


class Defect(NamedTuple):
    """A change of one place in the source.

    Attributes:
        words: what is wrong then.
        file: the file, below `lingpipe/`.
        old: text that occurs in it exactly once; the shorter, the longer it lives.
        new: what takes its place.
        tests: the files that should find it, below `tests/`, separated by spaces.
    """

    words: str
    file: str
    old: str
    new: str
    tests: str


DEFECTS = [Defect(*each) for each in (
    # Schedules.
    ('gpipe runs backward passes in the order of the forward passes', 'schedules/orders.py',
     'micro_batches[::-1]', 'micro_batches', 'schedules/test_schedule.py'),
    ('1F1B keeps one micro-batch more than its devices need', 'schedules/orders.py',
     'num_devices - 1 - stage)', 'num_devices - stage)', 'schedules/test_schedule_properties.py'),
    ('ZB-H1 leaves out the last weight gradients', 'schedules/orders.py',
     '(*order, *weight_gradients)', 'tuple(order)', 'schedules/test_schedule.py schedules/test_schedule_properties.py'),
    ('a V-shaped schedule keeps one micro-batch more than it may', 'schedules/v_shaped.py',
     '>= self._most_kept', '> self._most_kept', 'schedules/test_v_shaped.py'),
    # The engine and its stages.
    ('an action does not wait for the previous one on its device', 'pipeline/executor.py',
     'self._previous[device] = [done.operation]', 'pass', 'pipeline/test_overlap.py'),
    ('what is to be recomputed is kept', 'pipeline/executor.py',
     ' if is_all else schedule.backwards_after_own_forward()', '',
     'pipeline/test_gpipe_layer_schedules.py pipeline/test_gradient_flow.py'),
    ('only the last micro-batch counts in a weight gradient', 'pipeline/executor.py',
     'return self._weight_gradients[stage.index] or self._zeros(stage)', 'return self._zeros(stage)',
     'pipeline/test_gpipe_layer_schedules.py'),
    ('of an output that two stages read, one gradient comes back', 'pipeline/gradient_flow.py',
     'return parts[0] if len(parts) == 1 else self._call(device, tf.add_n, parts)', 'return parts[0]',
     'pipeline/test_gradient_flow.py'),
    ('recomputation draws again what cannot be repeated', 'stages/stage_program.py',
     'cut.unrepeatable + ([] if', '([] if',
     'pipeline/test_gpipe_layer.py'),
    ('all random layers get the same seed', 'stages/random_seeds.py',
     '_draw(seed, [count, 2])', 'tf.repeat(_draw(seed, [1, 2]), count, 0)', 'pipeline/test_gpipe_layer_random.py'),
    ('a stage keeps its program when a setting of a layer changes', 'stages/stage.py',
     ', *frozen, *fixed)', ', *frozen)', 'models/test_model_surface.py'),
    # Micro-batches, statistics and losses.
    ('rows that the micro-batches do not divide are dropped', 'stages/micro_batches.py',
     'rows * m // num_micro_batches', 'rows // num_micro_batches * m', 'stages/test_micro_batches.py'),
    ('all micro-batches draw the random numbers of the first', 'stages/micro_batches.py',
     '[0, 0, micro_batch, self._rows', '[0, 0, 0, self._rows', 'pipeline/test_gpipe_layer_random.py'),
    ("a batch's variance lacks the distance between micro-batches", 'stages/batch_statistics.py',
     ' + kept * fraction * tf.square(apart)', '', 'pipeline/test_gpipe_layer.py'),
    ('sample weights count in the divisor of every mean', 'stages/losses.py',
     "loss.reduction == 'mean_with_sample_weight'", 'True', 'models/test_pipeline_model.py'),
    ('an evaluation gives the metrics of its last batch', 'training/evaluation.py',
     'tf.nest.map_structure(np.add, totals, sums)', 'sums', 'training/test_evaluation.py'),
    # Partitions and plans.
    ('activations that wait for their W count as freed', 'partition/layer_memory.py',
     'timeline.WEIGHT if schedule.is_split(action) else timeline.BACKWARD', 'timeline.BACKWARD',
     'partition/test_layer_memory.py'),
    ('sums of gradients take no memory', 'partition/memory_model.py',
     '2 * columns.weights', 'columns.weights', 'partition/test_memory_model.py'),
    ('a gradient takes the time of the transfer of another boundary', 'schedules/simulation.py',
     'transfers[min(needed.stage, action.stage)]', 'transfers[needed.stage]', 'schedules/test_simulation.py'),
    # Optimizers.
    ('LARS leaves weight decay out of its trust ratio', 'optimizers/lars.py',
     'gradient_norm + decay * weight_norm', 'gradient_norm', 'optimizers/test_lars.py'),
    ('clipping by the global norm leaves out the weights of a device', 'optimizers/device_placement.py',
     'losses.add_up(halves)', 'halves[0]', 'optimizers/test_device_placement.py'),
    ('gradients are not divided by the scale of the loss', 'pipeline/loss_pass.py',
     'weight if factor is None else weight * factor', 'weight',
     'models/test_pipeline_model_precision.py training/test_train_program.py'),
    # Devices.
    ('the sum of a ring ends one device before its owner', 'devices/collectives.py',
     'entries[last + 1:] + entries[:last + 1]', 'entries[last:] + entries[:last]',
     'devices/test_collectives.py'),
    ('what was traced before a move reads the variable left behind', 'devices/variable_placement.py',
     '    patches.forget_traces()\n', '', 'test_patches.py'),
    # Checkpoints and inputs.
    ('training resumes from its oldest checkpoint', 'training/checkpoints.py',
     ', reverse=True)]', ')]', 'training/test_checkpoints.py training/test_checkpointing.py'),
    ('a checkpoint lacks the moving averages of weights', 'training/checkpointing.py',
     'program.average.averages if program.average else {}', '{}', 'training/test_checkpointing.py'),
    ('a resumed run counts earlier examples in batches of the new size', 'training/train_program.py',
     '(batch_size or data.params.batch_size)', 'data.params.batch_size',
     'training/test_trainer.py'),
    ('the last batch of an evaluation is dropped', 'input/base_input.py',
     'range(self.num_examples).batch(size)', 'range(self.num_examples // size * size).batch(size)',
     'input/test_instruction_input.py'),
    # Several processes, and one program for all cores.
    ('a sum of changes over workers counts the state before for each', 'placements/multi_worker.py',
     'before + self.sum(device, after - before)', 'self.sum(device, after)', 'placements/test_multi_worker.py'),
    ('all cores draw the random numbers of one micro-batch', 'spmd/spmd_pipeline.py',
     'tf.clip_by_value(index - cores,', 'tf.clip_by_value(index + 0 * cores,', 'spmd/test_spmd_pipeline.py'),
)]
