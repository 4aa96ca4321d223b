"""Text that a checkpoint generates or translates, without training."""

from lingpipe.models import generation, language_model, translation_model
from lingpipe.training import checkpoints, errors, experiment
from lingpipe.training import logdir as logdirs


class CheckpointGeneration:
    """Generates text with any number of partitions, whatever number the model was trained with.

    Args:
        params: the experiment's Params with `task`, `train` and `input`, whose tokenizer is used; no data are read.
        logdir: folder of the run; one that is not there is refused.
        sampling: `Sampling`.
        devices: list of device names, one a partition, for params that name none.

    Raises:
        TrainingError: the task is no language model, or there is no such folder.
    """

    def __init__(self, params, logdir, sampling, devices=None):
        _require_language_model(params.task.cls)
        sampling.validate()
        self._logdir = logdirs.LogDir(logdir)
        self._logdir.require()
        spec = params.input.cls.InputSpec(params.input)
        self._tokenizer = params.input.tokenizer.Instantiate()
        body = experiment.build_task(experiment.evaluation_params(params), spec, devices).body
        self._reader = checkpoints.WeightReader(body)
        self._generator = generation.Generator(body, spec.shape[1], sampling)

    def run(self, prompt, num_tokens, path=None):
        """Prints the prompt and, as it comes, its continuation.

        Args:
            prompt: text that stands at the start of a document.
            num_tokens: largest number of tokens to go on for; less where the model ends the document.
            path: path of a checkpoint; None takes the newest of the run that is whole. Moving averages are used where it holds them.

        Returns:
            The continuation.

        Raises:
            TrainingError: when there is no checkpoint, or it cannot be read.
        """
        self._reader.restore_chosen(path, self._logdir.train)
        print(prompt, end='', flush=True)
        pieces = []
        for piece in generation.text_pieces(self._generator, self._tokenizer, prompt, num_tokens):
            print(piece, end='', flush=True)
            pieces.append(piece)
        print()
        return ''.join(pieces)


def _require_language_model(cls):
    if not issubclass(cls, language_model.LanguageModel):
        raise errors.TrainingError(
            f'--mode=generate needs a LanguageModel, but the task of this model is {cls.__name__}. Choose a --model such as '
            'params.transformer_lm.')


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
        self._translator = translation_model.Translator(task, params.input.tokenizer.Instantiate(), spec)

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
