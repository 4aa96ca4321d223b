"""Checkpoints that do not depend on partitions: train with two, go on with three, evaluate with one."""

import os
import re

import tensorflow as tf

from lingpipe.optimizers import loss_scaling
from lingpipe.training import errors, variables

_SUFFIX = '/.ATTRIBUTES/VARIABLE_VALUE'
_INDEX = re.compile(r'ckpt-\d+\.index')
_ON_THIS_MACHINE = tf.train.CheckpointOptions(experimental_io_device='CPU:0')  # else each worker of a cluster writes on its own disk
_BOOKKEEPING = {'save_counter', '_CHECKPOINTABLE_OBJECT_GRAPH'}


class Checkpointer:
    """Writes and reads the state of a training run.

    A checkpoint holds the step, every weight and moving statistic by layer and name, the optimizer's slots and the
    moving averages. The position in the data and all random numbers follow from the step; a constant learning rate is
    not in it, so that a training can go on with another one.

    Args:
        directory: folder of the checkpoints.
        program: a `TrainProgram`.
        max_to_keep: number of newest checkpoints to keep.

    Raises:
        TrainingError: as `latest_checkpoint`.
    """

    def __init__(self, directory, program, max_to_keep=5):
        latest_checkpoint(directory)  # to CheckpointManager a damaged list is an empty one
        self._directory = str(directory)
        self._program = program
        self._state = _nested_state(program)
        self._checkpoint = tf.train.Checkpoint(**self._state)
        self._manager = tf.train.CheckpointManager(self._checkpoint, self._directory, max_to_keep, checkpoint_name='ckpt')

    def latest(self):
        """Returns the path of the newest checkpoint, or None."""
        return latest_checkpoint(self._directory)

    def save(self):
        """Writes a checkpoint of the current step; one that exists already is left alone.

        Returns:
            Path of the checkpoint.

        Raises:
            TrainingError: when the disk is full or cannot be written to.
        """
        step = int(self._program.global_step)
        newest = self.latest()
        if newest and step_of(newest) == step:
            return newest
        try:
            return self._manager.save(checkpoint_number=step, options=_ON_THIS_MACHINE)
        except (tf.errors.OpError, OSError) as error:
            if errors.is_lost_machine(error):
                raise
            earlier = f'The newest complete one is {newest}.' if newest else 'There is no earlier one.'
            raise errors.TrainingError(
                f'The checkpoint of step {step} could not be written to {self._directory} '
                f'({errors.cause(error)}). {earlier} Free some space or choose another --logdir, then run the same '
                'command again.') from error

    def restore(self, path):
        """Reads a checkpoint into the model, its optimizer and the step.

        Args:
            path: path of a checkpoint, as `save` returns it.

        Raises:
            TrainingError: when it is damaged, or is of another model.
        """
        _check_matches(path, self._state)
        _read(self._checkpoint, path)


class WeightReader:
    """Reads what evaluation needs from a checkpoint: weights, or their moving averages where it holds them.

    Args:
        body: a built `GPipeLayer`.
    """

    def __init__(self, body):
        self._named = variables.model_variables(body)
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)

    def restore(self, path, use_moving_average=True):
        """Puts the values of a checkpoint into the model.

        Args:
            path: path of a checkpoint; '.index' at its end does no harm.
            use_moving_average: whether to take moving averages instead of weights, where there are any.

        Returns:
            Step of the checkpoint.

        Raises:
            TrainingError: when it is damaged, or is of another model.
        """
        path = str(path).removesuffix('.index')
        averaged = use_moving_average and any(name.startswith('moving_average/') for name in stored_shapes(path))
        state = {'moving_average' if averaged else 'model': variables.nested(self._named), 'global_step': self._step}
        _check_matches(path, state, partial=True)
        _read(tf.train.Checkpoint(**state), path)
        return int(self._step)


def chosen_checkpoint(path, directory):
    """Returns `path`, or where it is None the newest complete checkpoint of a folder.

    Raises:
        TrainingError: when there is none.
    """
    path = path or latest_checkpoint(directory)
    if path is None:
        raise errors.TrainingError(
            f'There is no checkpoint in {directory}. Train first, give --checkpoint=PATH, or check --logdir.')
    return path


def latest_checkpoint(directory):
    """Returns the path of the newest complete checkpoint of a folder, or None.

    A checkpoint whose files somebody has deleted does not count.

    Raises:
        TrainingError: when there are checkpoints, but the list of the complete ones is missing or damaged, or names others.
    """
    complete = [path for path in _listed_checkpoints(directory) if _files_of(path)]
    present = sorted((name.removesuffix('.index') for name in _names_in(directory) if _INDEX.fullmatch(name)), key=step_of)
    if present and not complete:
        raise errors.TrainingError(
            f"The file 'checkpoint' in {directory}, which names the complete checkpoints, is missing or damaged. To go "
            f'on from {present[-1]} write model_checkpoint_path: "{present[-1]}" into it, or choose another --logdir; '
            'nothing was changed.')
    return complete[-1] if complete else None


def _listed_checkpoints(directory):
    try:
        state = tf.train.get_checkpoint_state(str(directory))
    except ValueError:
        return []
    listed = [*state.all_model_checkpoint_paths, state.model_checkpoint_path] if state else []
    for path in listed:
        if os.path.abspath(os.path.dirname(path)) != os.path.abspath(str(directory)):  # training would delete it as too old
            raise errors.TrainingError(
                f"The file 'checkpoint' in {directory} names {path}, which lies elsewhere: LingPipe never writes that. Delete the "
                'line, or choose another --logdir; nothing was changed.')
    return listed


def _files_of(path):
    folder, name = os.path.split(path)
    return [file for file in _names_in(folder or '.') if file.startswith(f'{name}.')]


def _names_in(folder):
    try:
        return tf.io.gfile.listdir(str(folder))
    except tf.errors.NotFoundError:
        return []


def step_of(path):
    """Returns the step in a checkpoint's name."""
    return int(str(path).rsplit('-', 1)[1])


def stored_shapes(path):
    """Returns a dictionary from variable name to shape of what a checkpoint holds.

    Raises:
        TrainingError: when it is missing or damaged.
    """
    try:
        shapes = tf.compat.v1.train.NewCheckpointReader(str(path)).get_variable_to_shape_map()
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        raise _damaged(path, error) from error
    return {name.removesuffix(_SUFFIX): list(shape) for name, shape in shapes.items() if name not in _BOOKKEEPING
            and not name.startswith('save_counter')}


def _nested_state(program):
    state = {
        'global_step': program.global_step, 'model': variables.nested(program.named_variables),
        'optimizer': variables.nested(_optimizer_variables(program.optimizer))}
    if program.average:
        state['moving_average'] = variables.nested(program.average.averages)
    return state


def _optimizer_variables(optimizer):
    """Slots are numbered, and named by the optimizer's class so that those of another one cannot fit by chance."""
    inner = loss_scaling.unscaled(optimizer)
    kept = [variable for variable in inner.variables if variable.name != 'learning_rate']
    named = {f'{type(inner).__name__}/{position:04d}': variable for position, variable in enumerate(kept)}
    if loss_scaling.is_scaling(optimizer):
        named |= {'loss_scale/scale': optimizer.dynamic_scale, 'loss_scale/finite_steps': optimizer.step_counter}
    return named


def _flat(tree, prefix=''):
    for name, node in tree.items():
        if isinstance(node, dict):
            yield from _flat(node, f'{prefix}{name}/')
        else:
            yield prefix + name, list(node.shape)


def _check_matches(path, state, partial=False):
    stored, wanted = stored_shapes(path), dict(_flat(state))
    missing = [name for name in wanted if name not in stored]
    extra = [] if partial else [name for name in stored if name not in wanted]
    other = [f'{name} {stored[name]} instead of {shape}' for name, shape in wanted.items()
             if name in stored and stored[name] != shape]
    if missing or extra or other:
        parts = [f'{len(names)} {what} (such as {names[0]})' for what, names in (
            ('variables it lacks', missing), ('it has and the model lacks', extra), ('of another shape', other)) if names]
        raise errors.TrainingError(
            f'Checkpoint {path} is of another model: {"; ".join(parts)}. Restore the params it was trained with, or choose '
            'another --logdir; nothing was changed.')


def _read(checkpoint, path):
    try:
        checkpoint.read(str(path), options=_ON_THIS_MACHINE).assert_existing_objects_matched().expect_partial()
    except (tf.errors.OpError, ValueError, AssertionError, IndexError) as error:
        if errors.is_lost_machine(error):
            raise
        raise _damaged(path, error) from error


def _damaged(path, error):
    if not _files_of(path):
        return errors.TrainingError(
            f'There is no checkpoint {path}. Give the path of one as training prints it, such as '
            'logs/my_run/train/ckpt-100.')
    return errors.TrainingError(
        f'Checkpoint {path} cannot be read ({errors.cause(error)}). To use the checkpoint before it, delete the '
        f'files {path}.*; nothing was changed.')
