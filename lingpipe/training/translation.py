"""Printing what the translation model of a checkpoint makes of a text."""

from lingpipe.models import text_translation
from lingpipe.training import checkpoints, experiment
from lingpipe.training import logdir as logdirs


class CheckpointTranslation:
    """Translates with any number of partitions, whatever number the model was trained with.

    Args:
        params: the experiment's Params with `task`, `train` and `input`, whose tokenizer is used; no data are read.
        logdir: folder of the run; one that is not there is refused.
        devices: list of device names, one a partition, for params that name none.

    Raises:
        TrainingError: when there is no such folder.
    """

    def __init__(self, params, logdir, devices=None):
        self._logdir = logdirs.LogDir(logdir)
        self._logdir.require()
        spec = params.input.cls.InputSpec(params.input)
        task = experiment.build_task(experiment.evaluation_params(params), spec, devices)
        self._reader = checkpoints.WeightReader(task.body)
        self._translator = text_translation.Translator(task, params.input.tokenizer.Instantiate(), spec)

    def run(self, text, path=None):
        """Prints and returns the translation of a text.

        Args:
            text: what to translate.
            path: path of a checkpoint; None takes the newest of the run that is whole. Moving averages are used where it holds them.

        Raises:
            TrainingError: when there is no checkpoint, or it cannot be read.
            ValueError: the text is empty or too long.
        """
        self._reader.restore_chosen(path, self._logdir.train)
        translation = self._translator(text)
        print(translation, flush=True)
        return translation
