"""Which part of an image training and evaluation look at, and how it is resized."""

from typing import NamedTuple

import tensorflow as tf

# Szegedy et al. 2015 (arXiv:1409.4842), section 6: patches of 8 % to 100 % of the image, aspect ratio 3/4 to 4/3.
_AREA_RANGE = (0.08, 1.0)
_ASPECT_RATIO_RANGE = (3 / 4, 4 / 3)

# The part that evaluation keeps; of the released Inception, AmoebaNet and ResNet models.
_CENTRAL_FRACTION = 0.875

METHODS = ('bilinear', 'bicubic')


class Cropping(NamedTuple):
    """A way of cutting out a part of an image; a box is int32 [4]: row, column, height, width.

    Attributes:
        max_attempts: how often a random box is drawn before the central one is taken.
        keeps_aspect_ratio: whether evaluation looks at a square; else at as much of the height as of the width.
        method: how the part is resized, 'bilinear' or 'bicubic'.
    """

    max_attempts: int
    keeps_aspect_ratio: bool
    method: str

    def random_box(self, shape, seed):
        """Draws a box as the training of Inception does.

        Args:
            shape: int32 [3], height, width and channels of the image.
            seed: integer [2]; equal seeds give equal boxes.
        """
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            seed=seed,
            min_object_covered=0.0,
            aspect_ratio_range=_ASPECT_RATIO_RANGE,
            area_range=_AREA_RANGE,
            max_attempts=self.max_attempts,
        )
        # The operation gives the whole image where no attempt succeeded.
        failed = tf.reduce_all(size[:2] == shape[:2])
        return tf.where(failed, self.central_box(shape), tf.concat([begin[:2], size[:2]], axis=0))

    def central_box(self, shape):
        """Returns the box that evaluation looks at: 87.5 % of height and width, or of the shorter of them.

        Args:
            shape: int32 [3], height, width and channels of the image.
        """
        kept = tf.fill([2], tf.reduce_min(shape[:2])) if self.keeps_aspect_ratio else shape[:2]
        size = tf.cast(tf.round(tf.cast(kept, tf.float32) * _CENTRAL_FRACTION), tf.int32)
        return tf.concat([(shape[:2] - size) // 2, size], axis=0)


INCEPTION = Cropping(max_attempts=100, keeps_aspect_ratio=False, method='bilinear')
RESNET = Cropping(max_attempts=10, keeps_aspect_ratio=True, method='bicubic')
