"""Experiment trackers, which are services that keep the params and curves of many runs.

Each tracker has its own library, and gets the curves that TensorBoard gets. A resumed training run continues the same
run in the tracker. A file such as control/mlflow_run.txt has the id of the tracker's run. If a tracker fails during
training, training continues without the tracker.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from absl import logging

from lingpipe import hyperparams, wording
from lingpipe.hyperparams_text import param_tree, value_text
from lingpipe.training import logdir as logdirs
from lingpipe.training import progress

FINISHED, FAILED, KILLED = 'FINISHED', 'FAILED', 'KILLED'  # MLflow's words
Value = bool | int | float | str
_MOST_PARAMS_OF_A_CALL, _LONGEST_VALUE = 100, 500  # MLflow takes no more in one request
_INDEX = re.compile(r'\[(\d+)\]')


class Tracker(Protocol):
    """The interface through which `Trackers` uses a service."""

    def start(self, config: dict[str, Value], run: str | None) -> str:
        """Begin or continue a run in the service. Return the id of the run.

        Args:
            run: id of the run to continue; None: begin a new run.
        """
        ...

    def log(self, step: int, values: dict[str, float]) -> None:
        """Add a point to each curve in `values`. `step` is the number of steps so far."""
        ...

    def end(self, status: str) -> None:
        """End the run. `status` is FINISHED, FAILED or KILLED. KILLED means that a signal stopped the training."""
        ...


class WeightsAndBiases:
    """A run in Weights & Biases. Environment variables `WANDB_...` set the project, the entity and the mode."""

    def __init__(self, logdir: logdirs.LogDir) -> None:
        import wandb
        self._wandb = wandb
        self._name = logdir.path

    def start(self, config: dict[str, Value], run: str | None) -> str:
        """See `Tracker.start`."""
        self._run = self._wandb.init(
            id=run or uuid.uuid4().hex, resume='allow', name=self._name, config=config)
        if run is not None:
            self._run.config.update(config, allow_val_change=True)
        return self._run.id

    def log(self, step: int, values: dict[str, float]) -> None:
        """See `Tracker.log`."""
        self._run.log(values, step=step)  # W&B ignores points of a step that was logged before a crash

    def end(self, status: str) -> None:
        """See `Tracker.end`."""
        if status == FINISHED:
            self._run.finish()
        else:
            self._run.finish(exit_code=1 if status == FAILED else 255)


class MLflow:
    """A run in MLflow. Environment variables `MLFLOW_...` set the server and the experiment."""

    def __init__(self, logdir: logdirs.LogDir) -> None:
        import mlflow
        self._mlflow = mlflow
        self._name = logdir.path

    def start(self, config: dict[str, Value], run: str | None) -> str:
        """See `Tracker.start`."""
        if run is not None:  # MLflow's params cannot change, so a resumed run keeps its first params
            return self._mlflow.start_run(run_id=run).info.run_id
        started = self._mlflow.start_run(run_name=self._name).info.run_id
        # MLflow allows no brackets in names, so `layers[0].units` becomes `layers.0.units`.
        items = [(_INDEX.sub(r'.\1', path), str(value)[:_LONGEST_VALUE]) for path, value in config.items()]
        for begin in range(0, len(items), _MOST_PARAMS_OF_A_CALL):
            self._mlflow.log_params(dict(items[begin:begin + _MOST_PARAMS_OF_A_CALL]))
        return started

    def log(self, step: int, values: dict[str, float]) -> None:
        """See `Tracker.log`."""
        self._mlflow.log_metrics(values, step=step)

    def end(self, status: str) -> None:
        """See `Tracker.end`."""
        self._mlflow.end_run(status)


TRACKERS: dict[str, Callable[[logdirs.LogDir], Tracker]] = {'wandb': WeightsAndBiases, 'mlflow': MLflow}


class Trackers:
    """The curves of a training run, for TensorBoard and for the trackers in `names`."""

    def __init__(self, names: Sequence[str], logdir: logdirs.LogDir) -> None:
        self._logdir = logdir
        self._files: dict[str, progress.SummaryWriter] = {}
        self._made: dict[str, Tracker] = {name: TRACKERS[name](logdir) for name in names}
        self._active: dict[str, Tracker] = {}

    def start(self, params: hyperparams.Params, datasets: Iterable[str]) -> None:
        """Open the event files, and start the run of each tracker."""
        self._files = {'train': progress.SummaryWriter(self._logdir.train),
                       **{name: progress.SummaryWriter(self._logdir.evaluation(name)) for name in datasets}}
        config = flat(params)
        for name, tracker in self._made.items():
            file = f'{name}_run.txt'
            earlier = (self._logdir.read('control', file) or '').strip()
            run = tracker.start(config, earlier or None)
            self._active[name] = tracker
            self._logdir.write_control_file(file, f'{run}\n')

    def text(self, name: str, text: str, step: int) -> None:
        """Write a text to TensorBoard only, not to the trackers."""
        self._files['train'].text(name, text, step)

    def log(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve in `values`. `name` is 'train' or the name of a dataset."""
        self._files[name].scalars(step, values)
        if name != 'train':
            self._files[name].flush()  # for other processes
        named = {f'{name.lower()}/{curve}': value for curve, value in values.items()}
        self._each(lambda tracker: tracker.log(step, named))

    def end(self, status: str) -> None:
        """End the run of each tracker, and flush all curves. For `status` see `Tracker.end`."""
        for file in self._files.values():
            file.flush()
        self._each(lambda tracker: tracker.end(status))

    def _each(self, action: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._active.items()):
            try:
                action(tracker)
            except Exception as error:  # an unavailable service must not end a training run
                del self._active[name]
                logging.warning('train.trackers: %r failed (%s: %s). Training continues without it.', name,
                                type(error).__name__, error)


def validate(names: Sequence[str]) -> None:
    """Raise ValueError unless `names` is a list or tuple of trackers' names."""
    if not isinstance(names, (list, tuple)):
        raise ValueError(f'train.trackers={names!r} is not possible: it must be a list of names. Set it to '
                         "['mlflow'], for instance.")
    for name in names:
        if not isinstance(name, str) or name not in TRACKERS:
            raise ValueError(f'train.trackers has {name!r}, which is not a tracker'
                             f'{wording.did_you_mean(str(name), TRACKERS)} Set it to names that are.')


def flat(params: hyperparams.Params) -> dict[str, Value]:
    """Return {path: value} of all params. Values other than numbers and texts become texts."""
    return {path: value if isinstance(value, (bool, int, float, str)) else value_text.format_value(value)
            for path, value in param_tree.walk(params) if not param_tree.holds_params(value)}
