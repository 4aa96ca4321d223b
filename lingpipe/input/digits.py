"""The handwritten digits, from a file of this folder: nothing to download or prepare, and TFDS is not imported.

`digits_dataset.py` makes a TFDS dataset of the same images, for parts of splits and for folders of prepared data.
"""

import hashlib
import pathlib

import numpy as np
import tensorflow as tf

NAME = 'digits'
NUM_CLASSES = 10
IMAGE_SHAPE = (8, 8, 1)
_SPLITS = ('train', 'test')
_HIGHEST_COUNT = 16
# The arrays `ink` and `labels` are what scikit-learn's `load_digits` returns. `test` has 20 % of every class: the rows
# that its `train_test_split` draws with `stratify=labels, test_size=0.2, random_state=0`, in ascending order.
_FILE = pathlib.Path(__file__).with_name('digits.npz')


def examples() -> tuple[np.ndarray, np.ndarray]:
    """Return all images, uint8 [1797, 8, 8, 1], and labels, int64 [1797], in the order of scikit-learn."""
    with np.load(_FILE) as file:
        images = np.round(file['ink'] * (255 / _HIGHEST_COUNT)).astype(np.uint8)[..., np.newaxis]
        return images, file['labels'].astype(np.int64)


def stratified_split() -> dict[str, np.ndarray]:
    """Return the ascending rows of 'train' and 'test', as scikit-learn's `train_test_split` draws them."""
    with np.load(_FILE) as file:
        test = file['test'].astype(np.int64)
        return {'train': np.setdiff1d(np.arange(len(file['labels'])), test), 'test': test}


def are_at_hand(dataset: str, split: str, data_dir: str | None) -> bool:
    """Return whether `DigitsImages` has a split of a TFDS dataset; if `data_dir` is given, it is read instead."""
    return dataset == NAME and split in _SPLITS and data_dir is None


class DigitsImages:
    """One split of the digits, with the same examples as `tfds_builders.TfdsImages`.

    Attributes:
        name, folder, num_examples, num_classes, image_shape: see `TfdsImages`.
    """

    name, folder = NAME, 'lingpipe/input'
    num_classes, image_shape = NUM_CLASSES, IMAGE_SHAPE

    def __init__(self, split: str) -> None:
        images, labels = examples()
        order = _order_of_tfds(stratified_split()[split], split)
        self._split, self._images, self._labels = split, images[order], labels[order]
        self.num_examples = len(order)

    def encoded_examples(self, shuffle_seed: tf.Tensor | None = None) -> tf.data.Dataset:
        """Return the split once, always in stored order; see `TfdsImages.encoded_examples`."""
        del shuffle_seed
        identifiers = [f'{NAME}-{self._split}__{number}' for number in range(self.num_examples)]
        rows = tf.data.Dataset.from_tensor_slices((self._images, self._labels, identifiers))
        return rows.map(lambda image, label, identifier: (tf.io.encode_png(image), label, identifier))


def _order_of_tfds(indices, split):
    """Sort examples as TFDS stores them, by the MD5 hash of the name of the split and the key."""
    return sorted(map(int, indices), key=lambda index: hashlib.md5(f'{split}{index}'.encode()).digest())
