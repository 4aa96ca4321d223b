"""TensorBoard event files."""

import pathlib

import tensorflow as tf


class SummaryWriter:
    """Writes scalars and texts of one kind of run, such as 'train' or 'eval_test'.

    Args:
        directory: folder of the event file.
    """

    def __init__(self, directory):
        self._writer = tf.summary.create_file_writer(str(pathlib.Path(directory)))

    def scalars(self, step, values):
        """Writes one point of several curves.

        Args:
            step: step of the point.
            values: dictionary from name to number.
        """
        with self._writer.as_default():
            for name, value in values.items():
                tf.summary.scalar(name, value, step=step)

    def text(self, name, text):
        """Writes a text, shown in TensorBoard with its spaces kept."""
        with self._writer.as_default():
            tf.summary.text(name, '\n'.join('    ' + line for line in text.splitlines()), step=0)

    def flush(self):
        """Makes everything written so far visible to others."""
        self._writer.flush()
