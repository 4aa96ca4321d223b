"""From what is kept of an image to the pixels of an example, and what is wrong with it."""

import tensorflow as tf

from lingpipe.input import bad_records, image_decoding


class PixelReader:
    """Decodes, cuts out and resizes images one at a time; of a bad one the pixels are black.

    An image is bad that is empty, cut off, damaged, no image, or stored with other than 1 or 3 channels: of CMYK, or of
    transparency, there is no one right conversion.

    Args:
        size: (height, width, channels) of the pixels.
        cropping: `Cropping`, or None for whole images.
        resizes: whether whole images are resized; else they have that size.
        training: whether a part is cut out at random, or from the middle.
        fused: whether only the part is decoded that is cut out.
        trusts: whether nothing is looked for.
        guarded: whether an image that cannot be decoded is a bad one like others, and not an error; it costs about as much as
            decoding 64 x 64 pixels.
    """

    def __init__(self, size, cropping, resizes, training, fused, trusts, guarded):
        self._size = size
        self._cropping = cropping
        self._resizes = resizes
        self._training = training
        self._fused = fused
        self._trusts = trusts
        self._guarded = guarded

    def from_encoded(self, encoded, identifier, seed):
        """Reads an encoded image.

        Args:
            encoded: scalar string.
            identifier: scalar string, TFDS's identifier of the example.
            seed: int32 [n], of which the first two draw the box; None in evaluation.

        Returns:
            Tuple of uint8 `size`, and what is wrong, a scalar string as of `bad_records.problem`.
        """

        def pixels(encoded, seed):
            image, num_channels = image_decoding.decode_image(
                encoded, self._size[2], self._box(seed), self._fused)
            return self._resized(image), num_channels

        return self._checked(pixels, encoded, identifier, tf.zeros([2], tf.int32) if seed is None else seed, self._size)

    def whole(self, encoded, identifier):
        """Decodes an image to keep it: `from_decoded` reads it.

        Returns:
            Tuple of the serialized image, and what is wrong with it, scalar strings.
        """

        def pixels(encoded, unused_seed):
            return image_decoding.decode_image(encoded, self._size[2])

        image, problem = self._checked(pixels, encoded, identifier, tf.zeros([2], tf.int32), [1, 1, self._size[2]])
        return tf.io.serialize_tensor(image), problem

    def from_decoded(self, serialized, problem, seed):
        """Reads what `whole` has kept; arguments and results otherwise as of `from_encoded`."""
        image = tf.ensure_shape(tf.io.parse_tensor(serialized, tf.uint8), [None, None, self._size[2]])
        return self._resized(image_decoding.cut_out(image, self._box(seed))), problem

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

    def _checked(self, pixels, encoded, identifier, seed, fallback_size):
        if self._trusts:
            return pixels(encoded, seed)[0], tf.constant('')
        if self._guarded:
            black = tf.zeros(fallback_size, tf.uint8)
            image, num_channels = bad_records.guarded(pixels, (encoded, seed), (black, tf.constant(0)))
        else:
            image, num_channels = pixels(encoded, seed)
        return tf.cond(
            (num_channels == 1) | (num_channels == 3), lambda: (image, tf.constant('')),
            lambda: (tf.zeros_like(image), bad_records.problem(identifier, _reason(encoded, num_channels))))


def _reason(encoded, num_channels):
    """What is wrong with an image; no channels are those of an image that was not decoded."""
    undecoded = tf.where(tf.strings.length(encoded) == 0, 'is empty', 'is cut off, damaged or no image of the right size')
    unusual = tf.strings.join(
        ['has ', tf.strings.as_string(num_channels), ' channels (CMYK or transparency) and not 1 or 3'])
    return tf.where(num_channels == 0, undecoded, unusual)
