"""Real photographs as a TFDS dataset that is like ImageNet in the size of its images and files, and needs no
network."""

import io

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

_LONG_SIDE, _SHORT_SIDE = 500, 375
_JITTER = 0.1
_LEAST_PART = 0.8
_QUALITY = 95
_NUM_CLASSES = 2


class Photographs(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Parts of scikit-learn's two photographs, resized to 500 x 375 pixels give or take a tenth, as JPEG.

    Args:
        num_images: how many.
    """

    VERSION = tfds.core.Version('1.0.0')
    url_infos = None  # Nothing is downloaded, so TFDS need not look for checksums.

    def __init__(self, *, num_images=0, **kwargs):
        self._num_images = num_images
        super().__init__(**kwargs)

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({
            'image': tfds.features.Image(shape=(None, None, 3), encoding_format='jpeg'),
            'label': tfds.features.ClassLabel(num_classes=_NUM_CLASSES),
        }))

    def _split_generators(self, dl_manager):
        return {'train': self._generate_examples()}

    def _generate_examples(self):
        from sklearn import datasets

        photographs = [Image.fromarray(image) for image in datasets.load_sample_images().images]
        for number in range(self._num_images):
            label = number % _NUM_CLASSES
            file = io.BytesIO(_part(photographs[label], np.random.default_rng(number)))
            yield number, {'image': file, 'label': label}


def prepare(data_dir, num_images, num_files):
    """Writes the dataset 'photographs'.

    Args:
        data_dir: folder for TFDS.
        num_images: how many images.
        num_files: among how many TFRecord files.

    Returns:
        Mean size of an image, in bytes.
    """
    tfds.disable_progress_bar()
    builder = Photographs(data_dir=data_dir, num_images=num_images)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=num_files))
    return builder.info.splits['train'].num_bytes / num_images


def _part(photograph, generator):
    """Returns the JPEG file of a random part, 4:3, mirrored or not."""
    height = generator.uniform(_LEAST_PART, 1) * photograph.height
    width = height * _LONG_SIDE / _SHORT_SIDE
    left, top = generator.uniform(0, photograph.width - width), generator.uniform(0, photograph.height - height)
    scale = generator.uniform(1 - _JITTER, 1 + _JITTER)
    image = photograph.resize(
        (round(scale * _LONG_SIDE), round(scale * _SHORT_SIDE)), Image.Resampling.LANCZOS,
        box=(left, top, left + width, top + height))
    if generator.integers(2):
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    file = io.BytesIO()
    image.save(file, 'JPEG', quality=_QUALITY)
    return file.getvalue()
