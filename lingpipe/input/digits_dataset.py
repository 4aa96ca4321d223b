"""The handwritten digits of scikit-learn as a TFDS dataset: real images that need no network."""


import numpy as np
import tensorflow_datasets as tfds

_DESCRIPTION = """\
1,797 handwritten digits, 8x8 pixels, gray. They are the test part of the UCI data set "Optical Recognition of
Handwritten Digits", of which scikit-learn carries a copy, so preparing them needs no network.

Each pixel counts the inked dots of a 4x4 block of a 32x32 scan (0 to 16); it is stored as round(count * 255 / 16), ink
is bright. Every class is split 80/20 into 'train' and 'test' by scikit-learn's own draw. The split is by image: the
writers of the test images also wrote training images.
"""

_CITATION = """\
@misc{alpaydin1998digits,
  author    = {Alpaydin, E. and Kaynak, C.},
  title     = {Optical Recognition of Handwritten Digits},
  year      = {1998},
  publisher = {UCI Machine Learning Repository},
  doi       = {10.24432/C50P49}
}
"""

_TEST_FRACTION = 0.2
_HIGHEST_COUNT = 16


class Digits(tfds.core.GeneratorBasedBuilder):
    """Builder of the TFDS dataset 'digits'; importing this module registers it."""

    name = 'digits'
    VERSION = tfds.core.Version('2.0.0')
    url_infos = None  # Nothing is downloaded, so TFDS need not look for checksums.
    NUM_CLASSES = 10

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict({
                'image': tfds.features.Image(shape=(8, 8, 1), encoding_format='png'),
                'label': tfds.features.ClassLabel(num_classes=self.NUM_CLASSES),
            }),
            supervised_keys=('image', 'label'),
            homepage='https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits',
            citation=_CITATION,
            license='Creative Commons Attribution 4.0 International (CC BY 4.0)',
        )

    def _split_generators(self, dl_manager):
        from sklearn import datasets

        digits = datasets.load_digits()
        images = np.round(digits.images * (255 / _HIGHEST_COUNT)).astype(np.uint8)[..., np.newaxis]
        return {
            split: self._generate_examples(images, digits.target, indices)
            for split, indices in stratified_split(digits.target).items()
        }

    def _generate_examples(self, images, labels, indices):
        for index in indices:
            yield int(index), {'image': images[index], 'label': int(labels[index])}


def stratified_split(labels: np.ndarray) -> dict[str, np.ndarray]:
    """Splits the examples of every class 80/20, as scikit-learn does with `random_state=0`.

    The split is part of the data: it is the one that a reader who compares another method would try first.

    Args:
        labels: integer array [num_examples].

    Returns:
        `{'train': indices, 'test': indices}`, sorted integer arrays that share no index.
    """
    from sklearn import model_selection

    train, test = model_selection.train_test_split(
        np.arange(len(labels)), test_size=_TEST_FRACTION, stratify=labels, random_state=0)
    return {'train': np.sort(train), 'test': np.sort(test)}
