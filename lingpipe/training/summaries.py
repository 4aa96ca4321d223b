"""TensorBoard event files."""

import contextlib

import tensorflow as tf

from lingpipe.training import errors


class SummaryWriter:
    """Writes scalars and texts of one kind of run, such as 'train' or 'eval_test'.

    Every method raises a `TrainingError` when the disk is full or cannot be written to.

    Args:
        directory: folder of the event file.
    """

    def __init__(self, directory):
        self._directory = directory
        with self._errors_in_words():
            self._writer = tf.summary.create_file_writer(str(directory))

    def scalars(self, step, values):
        """Writes one point of several curves.

        Args:
            step: step of the point.
            values: dictionary from name to number.
        """
        with self._errors_in_words(), self._writer.as_default():
            for name, value in values.items():
                tf.summary.scalar(name, value, step=step)

    def text(self, name, text, step=0):
        """Writes a text of a step, shown in TensorBoard with its spaces kept."""
        with self._errors_in_words(), self._writer.as_default():
            tf.summary.text(name, '\n'.join('    ' + line for line in text.splitlines()), step=step)

    def flush(self):
        """Makes everything written so far visible to others."""
        with self._errors_in_words():
            self._writer.flush()

    @contextlib.contextmanager
    def _errors_in_words(self):
        try:
            yield
        except tf.errors.OpError as error:
            raise errors.TrainingError(
                f'The curves could not be written to {self._directory} ({errors.cause(error)}). Free some space '
                'or choose another --logdir, then run the same command again.') from error
