"""The handwritten digits, read directly from scikit-learn: nothing to prepare, and TFDS is not imported.

`digits_dataset.py` makes a TFDS dataset of the same images, for parts of splits and for folders of prepared data.
"""

import hashlib

import numpy as np
import tensorflow as tf

NAME = 'digits'
NUM_CLASSES = 10
IMAGE_SHAPE = (8, 8, 1)
_SPLITS = ('train', 'test')
_TEST_FRACTION = 0.2
_HIGHEST_COUNT = 16


def examples() -> tuple[np.ndarray, np.ndarray]:
    """Return all images, uint8 [1797, 8, 8, 1], and labels, int64 [1797], in the order of scikit-learn."""
    from sklearn import datasets

    found = datasets.load_digits()
    return np.round(found.images * (255 / _HIGHEST_COUNT)).astype(np.uint8)[..., np.newaxis], found.target


def stratified_split(labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return {'train', 'test'}: sorted indices, 80/20 of every class, drawn by scikit-learn with `random_state=0`.

    The split is fixed, so that other methods can be compared on the same test examples.
    """
    from sklearn import model_selection

    train, test = model_selection.train_test_split(
        np.arange(len(labels)), test_size=_TEST_FRACTION, stratify=labels, random_state=0)
    return {'train': np.sort(train), 'test': np.sort(test)}


def are_at_hand(dataset: str, split: str, data_dir: str | None) -> bool:
    """Return whether `DigitsImages` has a split of a TFDS dataset; if `data_dir` is given, it is read instead."""
    return dataset == NAME and split in _SPLITS and data_dir is None


class DigitsImages:
    """One split of the digits, with the same examples as `tfds_builders.TfdsImages`.

    Attributes:
        name, folder, num_examples, num_classes, image_shape: see `TfdsImages`.
    """

    name, folder = NAME, 'scikit-learn'
    num_classes, image_shape = NUM_CLASSES, IMAGE_SHAPE

    def __init__(self, split: str) -> None:
        images, labels = examples()
        order = _order_of_tfds(stratified_split(labels)[split], split)
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
