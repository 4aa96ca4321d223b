"""Images for tests: a photograph in all kinds of files, good and bad, and TFDS datasets of them."""

import io

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from sklearn import datasets

from tests.input import small_datasets

NUM_EXAMPLES = 40


def photograph(height=75, width=100):
    """Return one of scikit-learn's two photographs, uint8 [height, width, 3]."""
    image = Image.fromarray(datasets.load_sample_image('china.jpg'))
    return np.asarray(image.resize((width, height), Image.Resampling.LANCZOS))


def encoded(image, file_format='JPEG', mode='RGB', **options):
    """Return the bytes of a file that Pillow writes."""
    file = io.BytesIO()
    Image.fromarray(image).convert(mode).save(file, file_format, **options)
    return file.getvalue()


def _bad():
    """Return a dictionary from the number of an example to the bytes of its file."""
    jpeg, png = encoded(photograph()), encoded(photograph(), 'PNG')
    return {
        3: jpeg[:len(jpeg) // 2],
        8: png[:len(png) // 2],
        14: b'',
        15: jpeg[:2] + bytes(200) + jpeg[202:],
        21: b'GIF89a',
        30: b'<html>404 Not Found</html>',
    }


BAD = _bad()


class _Photographs(small_datasets.SmallDataset, skip_registration=True):
    features = tfds.features.FeaturesDict({
        'image': tfds.features.Image(shape=(None, None, 3), encoding_format='jpeg'),
        'label': tfds.features.ClassLabel(num_classes=NUM_EXAMPLES)})
    bad = {}

    def examples(self, split):
        for number in range(NUM_EXAMPLES):
            good = encoded(photograph(60 + number, 90 - number), mode='L' if number % 5 == 0 else 'RGB')
            yield {'image': io.BytesIO(self.bad.get(number, good)), 'label': number}


class GoodPhotographs(_Photographs):
    """A photograph in 40 sizes, every fifth gray; labels are numbers."""


class BadPhotographs(_Photographs):
    """The same with the bad files of BAD among them."""

    bad = BAD


def prepare(name, data_dir):
    """Write 'good_photographs' or 'bad_photographs' into four files."""
    return small_datasets.prepare(name, data_dir, num_shards=4)
