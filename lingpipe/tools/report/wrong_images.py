"""Images that a trained classifier misclassifies, found on this machine's processor."""

import io
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from PIL import Image

from lingpipe import hyperparams
from lingpipe.models import image_classifier
from lingpipe.training import checkpoint_contents, experiment
from lingpipe.training import logdir as logdirs

_MOST_SHOWN, _MOST_EXAMPLES, _LEAST_EXAMPLES = 16, 512, 32
_MOST_FLOPS = 3e10  # some seconds on one core
_DEVICE = 'CPU:0'


class WrongImage(NamedTuple):
    """An image with its class and the predicted one.

    Attributes:
        png: bytes of a PNG file.
        label: number of its class.
        prediction: number of the class with the largest logit.
    """

    png: bytes
    label: int
    prediction: int


class Found(NamedTuple):
    """The misclassified images of a dataset.

    Attributes:
        step: step of the checkpoint.
        num_examples: how many images were classified.
        num_wrong: how many of them were misclassified.
        shown: list of the first `WrongImage`s.
    """

    step: int
    num_examples: int
    num_wrong: int
    shown: list[WrongImage]


def shows_images(params: hyperparams.Params) -> bool:
    """Returns whether an experiment classifies images of one or three channels."""
    if not issubclass(params.task.cls, image_classifier.ImageClassifier):
        return False
    spec = params.input.cls.InputSpec(params.input)
    return isinstance(spec, tf.TensorSpec) and len(spec.shape) == 4 and spec.shape[3] in (1, 3)


def too_expensive(flops: int) -> bool:
    """Returns whether a model needs too much time for a few images on a processor.

    Args:
        flops: floating-point operations of the forward pass of one image.
    """
    return _LEAST_EXAMPLES * flops > _MOST_FLOPS


def find(params: hyperparams.Params, data_params: hyperparams.InstantiableParams, logdir: logdirs.LogDir,
         flops: int) -> Found:
    """Classifies the first images of a dataset with the newest checkpoint.

    Args:
        params: the experiment's Params.
        data_params: Params of the evaluation input.
        logdir: `LogDir` of the run.
        flops: floating-point operations of the forward pass of one image.

    Raises:
        TrainingError: there is no checkpoint, or it cannot be read.
        ValueError: the input cannot be built.
    """
    params = experiment.evaluation_params(params)
    params.task.body = experiment.on_one_device(params.task.body, _DEVICE)
    data = experiment.build_input(data_params, params.train.random_seed)
    task = experiment.build_task(params, data.input_spec)
    reader = checkpoint_contents.WeightReader(task.body, params.train.checkpoint_timeout_seconds)
    step = reader.restore_chosen(None, logdir.train)
    at_most = int(min(_MOST_EXAMPLES, _MOST_FLOPS // max(flops, 1)))
    batches = data.evaluation_dataset().unbatch().filter(lambda *example: example[-1] > 0).take(at_most).batch(
        data.params.batch_size)
    return Found(step, *_wrong(task.body, batches))


def _wrong(body, batches):
    num_examples, num_wrong, shown = 0, 0, []
    for images, labels, _ in batches:
        logits = tf.nest.flatten(body(images, training=False))[0]
        predictions, labels = np.argmax(logits, -1), labels.numpy()
        wrong = np.flatnonzero(predictions != labels)
        num_examples, num_wrong = num_examples + len(labels), num_wrong + len(wrong)
        shown += [WrongImage(_png(images[index].numpy()), int(labels[index]), int(predictions[index]))
                  for index in wrong[:_MOST_SHOWN - len(shown)]]
    return num_examples, num_wrong, shown


def _png(pixels):
    """Returns a PNG file of a normalised image, float [height, width, 1 or 3], scaled from black to white."""
    least, greatest = pixels.min(), pixels.max()
    grey = np.uint8(np.round(255 * (pixels - least) / max(greatest - least, 1e-6)))
    file = io.BytesIO()
    Image.fromarray(grey.squeeze(-1) if grey.shape[-1] == 1 else grey).save(file, 'PNG', optimize=True)
    return file.getvalue()
