"""The handwritten digits as a TFDS dataset: real images that need no network."""

import tensorflow_datasets as tfds

from lingpipe.input import digits

_DESCRIPTION = """\
1,797 handwritten digits, 8x8 pixels, gray. They are the test part of the UCI data set "Optical Recognition of
Handwritten Digits". LingPipe has a copy, so preparing them needs no network.

Each pixel counts the inked dots of a 4x4 block of a 32x32 scan (0 to 16); it is stored as round(count * 255 / 16), ink
is bright. Every class is split 80/20 into 'train' and 'test'. The split is by image: the
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


class Digits(tfds.core.GeneratorBasedBuilder):
    """Builder of the TFDS dataset 'digits'; importing this module registers it."""

    name = digits.NAME
    VERSION = tfds.core.Version('2.0.0')
    url_infos = None  # Nothing is downloaded, so TFDS need not look for checksums.
    NUM_CLASSES = digits.NUM_CLASSES

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict({
                'image': tfds.features.Image(shape=digits.IMAGE_SHAPE, encoding_format='png'),
                'label': tfds.features.ClassLabel(num_classes=self.NUM_CLASSES),
            }),
            supervised_keys=('image', 'label'),
            homepage='https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits',
            citation=_CITATION,
            license='Creative Commons Attribution 4.0 International (CC BY 4.0)',
        )

    def _split_generators(self, dl_manager):
        images, labels = digits.examples()
        return {
            split: self._generate_examples(images, labels, indices)
            for split, indices in digits.stratified_split().items()
        }

    def _generate_examples(self, images, labels, indices):
        for index in indices:
            yield int(index), {'image': images[index], 'label': int(labels[index])}
