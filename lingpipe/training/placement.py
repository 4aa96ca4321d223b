"""Where an experiment trains: all that a trainer knows about devices, replicas, workers and servers."""

import contextlib
from collections.abc import Callable
from typing import Any

from lingpipe import hyperparams
from lingpipe.models import base_task
from lingpipe.training import train_program


class Placement:
    """Placement on the devices of this process; the modules of `lingpipe/placements` have subclasses for others.

    ::

        Trainer ──> creating()      build the task: where variables are created
                ──> program(...)    the step: where it runs, and how gradients are summed
                ──> evaluate(...)   build the evaluation of a batch

    Attributes:
        devices: list of device names, one for each partition of each replica that this process builds, used if params
            name none; None: devices are chosen.
    """

    def __init__(self, devices: list[str] | None = None) -> None:
        self.devices = devices

    def creating(self) -> Any:
        """Return the context in which a task is built."""
        return contextlib.nullcontext()

    def program(self, task: base_task.BaseTask, train_params: hyperparams.Params,
                batch_spec: Any) -> train_program.TrainProgram:
        """Return the `TrainProgram` of a task.

        Args:
            task: a `BaseTask` whose body is built on `devices`, in `creating()`.
            batch_spec: nest of `tf.TensorSpec` `[batch, ...]` of a training batch, the input of the body first.
        """
        return train_program.TrainProgram(task, train_params)

    def evaluate(self, function: Callable, batch: Any) -> dict[str, tuple]:
        """Build `function(batch)` for an evaluation batch on the devices of the task, and return its results."""
        return function(batch)
