"""The variables of a checkpoint. Their names do not depend on partitions.

::

    global_step    model/dense_1/000_kernel    moving_average/dense_1/000_kernel    optimizer/SGD/0000    ...

A run on two partitions can resume on three.
"""

import os
import uuid
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from lingpipe.cluster import waits
from lingpipe.devices import device_kinds
from lingpipe.keras_graph import lora, model_source
from lingpipe.training import checkpoints, errors

MODEL, _AVERAGE = 'model/', 'moving_average/'  # prefixes of the names of weights and of their averages
_SUFFIX = '/.ATTRIBUTES/VARIABLE_VALUE'
# Otherwise each worker of a cluster would read from its own disk.
_ON_THIS_MACHINE = tf.train.CheckpointOptions(experimental_io_device='CPU:0')
_BOOKKEEPING = {'save_counter', '_CHECKPOINTABLE_OBJECT_GRAPH'}


def model_variables(body: Any) -> dict:
    """Return {name: Keras variable} of the weights and moving statistics of a built pipeline."""
    if body.model is not None:
        return model_source.names_by_path(body.model)
    named = {}
    for layer in body.stack:
        for position, variable in enumerate(layer.weights):  # a shared variable is named after its first layer
            named.setdefault(id(variable), (f'{layer.name}/{position:03d}_{variable.name}', variable))
    return dict(named.values())


def checkpoint_of(named: dict[str, Any]) -> tf.train.Checkpoint:
    """Make a `tf.train.Checkpoint` of {name: variable}."""
    tree = {}
    for name, variable in named.items():
        *folders, leaf = name.split('/')  # a slash makes a nested dictionary
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[leaf] = variable if isinstance(variable, tf.Variable) else variable.value
    return tf.train.Checkpoint(**tree)


class WeightReader:
    """Reader of checkpoints for evaluation. It prefers moving averages to weights."""

    def __init__(self, body: Any, timeout_seconds: float = 0) -> None:
        self._named, self._timeout_seconds = model_variables(body), timeout_seconds
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)

    def restore_chosen(self, path: str | None, directory: str) -> int:
        """Read a checkpoint into the model, by default the newest in `directory`. Return the step of the checkpoint.

        Raises:
            TrainingError: the checkpoint is missing, corrupt, or of another model.
        """
        if path is not None:
            return self.restore(os.path.expanduser(path))
        if checkpoints.read_newest(directory, self.restore)[0] is None:
            raise errors.TrainingError(
                f'There is no checkpoint in {directory}. Train first, give --checkpoint=PATH, or check --logdir.')
        return int(self._step)

    def restore(self, path: str) -> int:
        """Read a checkpoint into the model, and return the step of the checkpoint. `path` may end in '.index'."""
        path = str(path).removesuffix('.index')
        with waits.for_checkpoint(path, 'read', self._timeout_seconds):
            stored, state = stored_shapes(path), {'global_step': self._step}
            for name, variable in self._named.items():
                state[(_AVERAGE if _AVERAGE + name in stored else MODEL) + name] = variable
            require_match(path, state, partial=True)
            require_low_rank_parts(path, stored, self._named)
            read_state(path, state)
        return int(self._step)


def require_low_rank_parts(path: str, stored: dict[str, list], named: dict[str, Any]) -> None:
    """Raise TrainingError if a checkpoint has LoRA variables that the model lacks."""
    lost = [name for name in stored if lora.is_part(name) and name.startswith(MODEL)
            and name.removeprefix(MODEL) not in named]
    if lost:
        first = next((name for name in lost if name.endswith('_a')), lost[0])
        raise errors.TrainingError(
            f'Checkpoint {path} was trained by LoRA: it has {len(lost)} low-rank variables that this model lacks (such '
            f'as {first.removeprefix(MODEL)}), and without them its weights are those before LoRA. Give the --model '
            f'of that run, whose task.body.model has lora_rank={stored[first][-1]}; its --mode=export merges LoRA.')


def read_variables(path: str, pairs: list) -> None:
    """Read variables from a checkpoint. `pairs` is a list of (name in the checkpoint, variable)."""
    while pairs:
        state = dict(reversed(pairs))  # one variable for each name; others of the same name are read next
        read_state(path, state)
        pairs = [(name, variable) for name, variable in pairs if state[name] is not variable]


def stored_shapes(path: str) -> dict[str, list[int]]:
    """Return {name: shape} of a checkpoint's variables. Raise TrainingError if the file is missing or corrupt."""
    return {name: shape for name, (shape, _) in _stored(path).items()}


def _stored(path: str) -> dict[str, tuple[list[int], tf.DType]]:
    """Return the shape and dtype of each variable in a checkpoint."""
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(str(path))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        raise _damaged(path, error) from error
    # TensorFlow writes '..' for a dot.
    return {name.removesuffix(_SUFFIX).replace('..', '.'): (list(shape), dtypes[name])
            for name, shape in shapes.items() if name not in _BOOKKEEPING and not name.startswith('save_counter')}


def require_match(path: str, state: dict[str, Any], partial: bool = False) -> None:
    """Check that a checkpoint has the variables in `state`. With `partial`, the checkpoint may have more variables.

    Raises:
        DamagedCheckpointError: the checkpoint cannot be read.
        TrainingError: the checkpoint is missing, or has other names, shapes or dtypes.
    """
    stored = _stored(path)
    wanted = {name: (list(variable.shape), tf.as_dtype(variable.dtype)) for name, variable in state.items()}
    missing = [name for name in wanted if name not in stored]
    extra = [] if partial else [name for name in stored if name not in wanted]
    other = [f'{name} {stored[name][1].name} {stored[name][0]} instead of {dtype.name} {shape}'
             for name, (shape, dtype) in wanted.items() if name in stored and stored[name] != (shape, dtype)]
    if missing or extra or other:
        parts = [f'{len(names)} {what} (such as {names[0]})' for what, names in (
            ('variables it lacks', missing), ('it has and the model lacks', extra),
            ('of another shape or dtype', other)) if names]
        raise errors.TrainingError(
            f'Checkpoint {path} is of another model: {"; ".join(parts)}. Restore the params it was trained with, or '
            'choose another --logdir; nothing was changed.')


def read_state(path: str, state: dict[str, Any], options: tf.train.CheckpointOptions = _ON_THIS_MACHINE) -> None:
    """Read the variables in `state` from a checkpoint, which may have more variables.

    Raises:
        DamagedCheckpointError: the checkpoint is corrupt.
        TrainingError: there is no checkpoint.
    """
    try:
        checkpoint_of(state).read(str(path), options=options).assert_existing_objects_matched().expect_partial()
    except Exception as error:  # a corrupt list of objects makes TensorFlow raise any error
        if errors.is_lost_machine(error):
            raise
        raise _damaged(path, error) from error


def checkpoint_options(directory: str, devices: Iterable[str]) -> tf.train.CheckpointOptions:
    """Return the options to read and write a checkpoint of variables on `devices`."""
    hosts = {device_kinds.host_of(device) for device in devices}
    # If all machines see the folder, each reads and writes its own shard. Otherwise this machine does it all.
    is_sharded = len(hosts) > 1 and _is_seen_by(hosts, directory)
    return tf.train.CheckpointOptions(experimental_io_device=None if is_sharded else 'CPU:0')


def _is_seen_by(hosts: set[str], directory: str) -> bool:
    """Return whether all hosts see the files that this machine writes to `directory`."""
    token = uuid.uuid4().hex
    path = os.path.join(str(directory), f'seen_by_all_{token}')
    with tf.io.gfile.GFile(path, 'w') as file:
        file.write(token)
    try:
        return all(_read_on(host, path) == token.encode() for host in sorted(hosts))
    finally:
        tf.io.gfile.remove(path)


def _read_on(host: str, path: str) -> bytes | None:
    try:
        with tf.device(host):
            return tf.io.read_file(path).numpy()
    except tf.errors.OpError:
        return None


def _damaged(path: str, error: Exception) -> errors.TrainingError:
    if not checkpoints.is_complete(path):
        return errors.TrainingError(
            f'There is no checkpoint {path}. Give the path of one as training prints it, such as '
            'logs/my_run/train/ckpt-100.')
    return errors.DamagedCheckpointError(path, errors.cause(error))
