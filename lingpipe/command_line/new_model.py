"""`lingpipe new my_model`: writes a params file that trains without changes, with comments that say what to change."""

import importlib.util
import keyword
import os
import pathlib
from collections.abc import Sequence

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


def main(words: Sequence[str]) -> int:
    """Write the params file of a new model below the current folder; return the exit code.

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
    name = parts[-1].title().replace('_', '')
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in [*parts, name]):
        raise ValueError(f'{module!r} is not a name of a Python module. Use letters, digits and _, such as my_model.')
    path = pathlib.Path(*parts).with_suffix('.py')
    if path.exists():
        raise ValueError(f'{path} exists already. Choose another name, or remove the file.')
    is_own_package = parts[0] == 'params' or os.path.exists(os.path.join(parts[0], '__init__.py'))
    if not is_own_package and importlib.util.find_spec(parts[0]):
        raise ValueError(f'{parts[0]} is the name of an installed Python module, which would hide this file, or be '
                         'hidden by it. Choose another name.')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_TEXT.format(module=module, folder=parts[-1], name=name), encoding='utf-8')
    print(f'Wrote {path}. Train it with `lingpipe train --model={module} --logdir=logs/{parts[-1]}`.')
    return 0
