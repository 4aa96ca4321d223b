"""A folder of a log directory that pictures and the like are written to."""

import tensorflow as tf

from lingpipe.training import errors


class TraceFiles:
    """Files in a folder of a log directory.

    Args:
        logdir: path of the log directory, on this machine or wherever TensorFlow can write.
        name: name of the folder.

    Raises:
        TrainingError: when the folder cannot be made.
    """

    def __init__(self, logdir, name='trace'):
        self.folder = tf.io.gfile.join(logdir, name)
        self._attempt(lambda: tf.io.gfile.makedirs(self.folder))

    def write(self, name, content):
        """Writes a file, in place of an earlier one.

        Args:
            name: name in the folder.
            content: text or bytes.

        Returns:
            Path of the file.

        Raises:
            TrainingError: when it cannot be written.
        """
        path = tf.io.gfile.join(self.folder, name)
        self._attempt(lambda: self._write(path, content))
        return path

    def _write(self, path, content):
        with tf.io.gfile.GFile(path, 'wb') as file:
            file.write(content)

    def _attempt(self, action):
        try:
            action()
        except tf.errors.OpError as error:
            raise errors.TrainingError(
                f'{self.folder} cannot be written to ({errors.reason(error)}). Choose a --logdir of yours on a disk with free '
                'space.') from error
