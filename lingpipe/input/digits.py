"""Handwritten digits from a file in this folder. They need no download, no preparation and no TFDS.

The images are the test part of the UCI data set "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998,
doi 10.24432/C50P49, CC BY 4.0). They are gray and have 8x8 pixels. A pixel counts the inked dots in a 4x4 block of a
32x32 scan. 'train' and 'test' have images by the same writers.
"""

import hashlib
import pathlib
import re

import numpy as np
import tensorflow as tf

NAME = 'digits'
NUM_CLASSES = 10
IMAGE_SHAPE = (8, 8, 1)
_PART = re.compile(r'(train|test)(?:\[(-?\d+%?)?:(-?\d+%?)?\])?')
_HIGHEST_COUNT = 16
# The arrays `ink` and `labels` are what scikit-learn's `load_digits` returns. `test` has 20 % of every class: the rows
# that its `train_test_split` draws with `stratify=labels, test_size=0.2, random_state=0`, in ascending order.
_FILE = pathlib.Path(__file__).with_name('digits.npz')


def examples() -> tuple[np.ndarray, np.ndarray]:
    """Return images (uint8 [1797, 8, 8, 1]) and labels (int64 [1797]) in scikit-learn's order."""
    with np.load(_FILE) as file:
        images = np.round(file['ink'] * (255 / _HIGHEST_COUNT)).astype(np.uint8)[..., np.newaxis]
        return images, file['labels'].astype(np.int64)


def stratified_split() -> dict[str, np.ndarray]:
    """Return the row numbers of 'train' and 'test', in ascending order."""
    with np.load(_FILE) as file:
        test = file['test'].astype(np.int64)
        return {'train': np.setdiff1d(np.arange(len(file['labels'])), test), 'test': test}


class DigitsImages:
    """A split of the digits, such as 'train[:90%]'. `ImageInput` uses it like a `tfds_builders.TfdsImages`."""

    name, folder = NAME, 'lingpipe/input'
    num_classes, image_shape = NUM_CLASSES, IMAGE_SHAPE

    def __init__(self, split: str) -> None:
        images, labels = examples()
        order = _rows_of(split)
        self._split, self._images, self._labels = split, images[order], labels[order]
        self.num_examples = len(order)

    def encoded_examples(self, shuffle_seed: tf.Tensor | None = None) -> tf.data.Dataset:
        """Return each example once, in stored order. `shuffle_seed` is ignored. See `TfdsImages.encoded_examples`."""
        del shuffle_seed
        identifiers = [f'{NAME}-{self._split}__{number}' for number in range(self.num_examples)]
        rows = tf.data.Dataset.from_tensor_slices((self._images, self._labels, identifiers))
        return rows.map(lambda image, label, identifier: (tf.io.encode_png(image), label, identifier))


def _rows_of(split):
    """Return the row numbers of `split`, ordered by MD5 hash as in TFDS."""
    part = _PART.fullmatch(split)
    if part is None:
        raise ValueError(f"split: {split!r} is not a split of the digits. Choose 'train', 'test', or a part of one, "
                         "such as 'train[:90%]'.")
    name, *ends = part.groups()
    rows = sorted(stratified_split()[name].tolist(), key=lambda row: hashlib.md5(f'{name}{row}'.encode()).digest())
    return rows[slice(*(end and _place(end, len(rows)) for end in ends))]


def _place(end, count):
    return round(int(end[:-1]) * count / 100) if end.endswith('%') else int(end)
