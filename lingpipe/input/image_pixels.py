"""From what is kept of images to the pixels of examples, and what is wrong with them."""

import tensorflow as tf

from lingpipe.input import bad_records, image_decoding, row_function


class PixelReader:
    """Decodes, cuts out and resizes some images, one after another; of a bad one the pixels are black.

    An image is bad that is empty, cut off, damaged, no image, or stored with other than 1 or 3 channels: of CMYK, or of
    transparency, there is no one right conversion.

    Args:
        size: (height, width, channels) of the pixels.
        cropping: `Cropping`, or None for whole images.
        resizes: whether whole images are resized; else they have that size.
        training: whether a part is cut out at random, or from the middle.
        fused: whether only the part is decoded that is cut out.
        trusts: whether nothing is looked for.
        guarded: whether an image that cannot be decoded is a bad one like others, and not an error.
    """

    def __init__(self, size, cropping, resizes, training, fused, trusts, guarded):
        self._size = size
        self._cropping = cropping
        self._resizes = resizes
        self._training = training
        self._fused = fused
        self._trusts = trusts
        self._guarded = guarded

    def from_encoded(self, images, identifiers, seeds):
        """Reads encoded images.

        Args:
            images: string [n].
            identifiers: string [n], TFDS's identifiers of the examples.
            seeds: int32 [n, 2 or more], of which the first two draw the box; None where nothing is drawn.

        Returns:
            Tuple of uint8 [n, *size], and what is wrong with each, string [n]: empty, or as of `bad_records.describe`.
        """

        def pixels(encoded, seed):
            image, num_channels = image_decoding.decode_image(
                encoded, self._size[2], self._box(seed), self._fused)
            return self._resized(image), num_channels

        return self._checked(pixels, images, identifiers, seeds, tf.zeros(self._size, tf.uint8))

    def whole(self, images, identifiers):
        """Decodes images to keep them: `from_decoded` reads them.

        Returns:
            Tuple of the serialized images, and what is wrong with them, both string [n].
        """

        def pixels(encoded, unused_seed):
            image, num_channels = image_decoding.decode_image(encoded, self._size[2])
            return tf.io.serialize_tensor(image), num_channels

        black = tf.io.serialize_tensor(tf.zeros([1, 1, self._size[2]], tf.uint8))
        return self._checked(pixels, images, identifiers, None, black)

    def from_decoded(self, serialized, problems, seeds):
        """Reads what `whole` has kept; arguments and results otherwise as of `from_encoded`."""

        def pixels(serialized, seed):
            image = tf.ensure_shape(tf.io.parse_tensor(serialized, tf.uint8), [None, None, self._size[2]])
            return self._resized(image_decoding.cut_out(image, self._box(seed)))

        return row_function.map_rows(pixels, (serialized, seeds)), problems

    def _box(self, seed):
        """Returns the function that chooses the box, or None for all of the image."""
        if self._cropping is None:
            return None
        if not self._training:
            return self._cropping.central_box
        return lambda shape: self._cropping.random_box(shape, seed[:2])

    def _resized(self, image):
        if self._cropping is not None:
            image = image_decoding.resize(image, self._size[0], self._cropping.method)
        elif self._resizes:
            image = image_decoding.resize(image, self._size[0])
        return tf.ensure_shape(image, self._size)

    def _checked(self, pixels, images, identifiers, seeds, black):
        if seeds is None:
            seeds = tf.zeros([tf.size(images), 2], tf.int32)
        fallback = (black, tf.constant(0)) if self._guarded else None
        found, num_channels = row_function.map_rows(pixels, (images, seeds), fallback)
        no_problems = tf.fill(tf.shape(images), '')
        if self._trusts:
            return found, no_problems
        is_good = (num_channels == 1) | (num_channels == 3)
        is_shown = tf.reshape(is_good, [-1] + [1] * black.shape.rank)
        return tf.cond(
            tf.reduce_all(is_good), lambda: (found, no_problems),
            lambda: (tf.where(is_shown, found, black), tf.where(
                is_good, '', bad_records.describe(identifiers, _reasons(images, num_channels)))))


def _reasons(images, num_channels):
    """What is wrong with bad images, string [n]; no channels are those of an image that was not decoded."""
    undecoded = tf.where(tf.strings.length(images) == 0, 'is empty', 'is cut off, damaged or no image of the right size')
    unusual = tf.strings.join(
        ['has ', tf.strings.as_string(num_channels), ' channels (CMYK or transparency) and not 1 or 3'])
    return tf.where(num_channels == 0, undecoded, unusual)
