"""`lingpipe new my_model`: writes a params file that trains without changes, with comments that say what to change."""

import importlib.util
import keyword
import os
import pathlib
from collections.abc import Sequence

_LINGPIPE = pathlib.Path(__file__).parents[2]
_TEXT = '''\
"""A convolutional network on two devices. Train it with `lingpipe train --model={module} --logdir=logs/{folder}`."""

import keras

from lingpipe import base_model_params, layers, model_registry
from lingpipe.input import image_input
from lingpipe.models import image_classifier


@model_registry.RegisterSingleTaskModel
class {name}(base_model_params.SingleTaskModelParams):
    """One line about this experiment; `lingpipe list` shows it for the modules of the folder params/."""

    def Train(self):
        # Any image classification dataset of TFDS; 'digits' needs no download.
        return image_input.ImageInput.Params().Set(
            dataset='digits', split='train', batch_size=64, augmentation='digits')

    def Test(self):
        return self.Train().Set(split='test', batch_size=120)

    def Task(self):
        p = image_classifier.ImageClassifier.Params().Set(name='{folder}')
        p.body.Set(
            num_partitions=2,  # parts of the model, one per device; with 'auto' LingPipe chooses
            num_micro_batches=4,  # parts of a batch; best if it divides the batch size
            schedule='1f1b',  # the order of work on a device; 'gpipe' keeps more activations
            recompute='none',  # 'stage' stores less, but computes forward passes twice
            layers=[  # any Keras layers, in order; the layers of a Keras model: lingpipe.KerasModelParams
                layers.KerasParams(keras.layers.Conv2D, filters=32, kernel_size=3, strides=2, activation='relu'),
                layers.KerasParams(keras.layers.Conv2D, filters=64, kernel_size=3, strides=2, activation='relu'),
                layers.KerasParams(keras.layers.Flatten),
                layers.KerasParams(keras.layers.Dense, units=10),  # one unit per class, no softmax
            ])
        p.train.Set(max_steps=200, learning_rate=0.002, optimizer=layers.KerasParams(keras.optimizers.Adam))
        return p
'''


def write(words: Sequence[str]) -> str:
    """Write the params file of a new model below the current folder.

    Args:
        words: the name of the module, such as 'my_model', or 'params.my_model' for a file in the folder params/.

    Raises:
        ValueError: the words are not one name, or no new module can have this name.
        OSError: the file cannot be written.
    """
    if len(words) != 1:
        raise ValueError(f'`new` takes the name of one module, but {len(words)} words were given. Give, for instance, '
                         '`lingpipe new my_model`.')
    module = words[0].removesuffix('.py')
    parts = module.split('.')
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        raise ValueError(f'{module!r} is not a name of a Python module. Use letters, digits and _, such as my_model.')
    name = _class_name(parts[-1])
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f'{module!r} would have a class {name}, and Python does not allow this name. Choose another '
                         'one, such as my_model.')
    path = pathlib.Path(*parts).with_suffix('.py')
    _check_is_new(module, parts[0], path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_TEXT.format(module=module, folder=parts[-1], name=name), encoding='utf-8')
    return f'Wrote {path}. Train it with `lingpipe train --model={module} --logdir=logs/{parts[-1]}`.'


def _check_is_new(module, first, path):
    """Refuse a file that exists already, or that would hide an installed module."""
    if first == 'params' and (module == first or (_LINGPIPE / path).exists()):
        raise ValueError(f'{path} would hide models of LingPipe. Choose another name, such as params.my_model.')
    if path.exists():
        raise ValueError(f'{path} exists already. Choose another name, or remove the file.')
    is_ours = first == 'params' and module != first or os.path.exists(os.path.join(first, '__init__.py'))
    installed = None if is_ours else importlib.util.find_spec(first)
    if installed is not None and installed.origin is not None:
        raise ValueError(f'{first} is the name of an installed Python module, which would hide this file, or be hidden '
                         'by it. Choose another name.')


def _class_name(name):
    return ''.join(word[:1].upper() + word[1:] for word in name.split('_')) or 'Model'
