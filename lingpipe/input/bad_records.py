"""Records that cannot be used: counted, named, and left out up to a limit."""

import threading

import tensorflow as tf
from absl import logging


class BadRecords:
    """Counts and names bad records as their batches are made, in the process that trains.

    A record is counted once, however often it is visited.

    Args:
        max_bad_records: how many may be skipped; None: any number.
        source: where the records are from, for messages.

    Attributes:
        reasons: dictionary from the name of a record to what is wrong with it.
    """

    def __init__(self, max_bad_records, source):
        self.reasons = {}
        self._max_bad_records = max_bad_records
        self._source = source
        self._lock = threading.Lock()

    def note(self, problems):
        """Notes the bad records of a batch when the graph runs.

        Args:
            problems: string [batch]; of good records empty, of others as `describe` makes them.

        Returns:
            float32 [batch], 1 for a good record and 0 for a bad one.

        Raises:
            tf.errors.InvalidArgumentError: when the graph runs and there are too many.
        """
        is_good = problems == ''
        refusal = tf.cond(
            tf.reduce_all(is_good), lambda: tf.constant(''),
            lambda: tf.ensure_shape(tf.numpy_function(self._note, [problems], tf.string), []))
        with tf.control_dependencies([tf.debugging.Assert(refusal == '', [refusal])]):
            return tf.cast(is_good, tf.float32)

    def _note(self, problems):
        """Returns what to end the training with; nothing as long as it may go on."""
        for problem in filter(None, problems):
            refusal = self._note_one(*problem.decode(errors='replace').split('\n', 1))
            if refusal:
                return refusal.encode()
        return b''

    def _note_one(self, identifier, reason):
        file, _, number = identifier.rpartition('__')  # as TFDS joins them
        name = f'record {number} of {file}'
        with self._lock:
            if name in self.reasons:
                return ''
            self.reasons[name] = reason
            count = len(self.reasons)
        if self._max_bad_records is not None and count > self._max_bad_records:
            return (f'max_bad_records: {count} records of {self._source} cannot be used, {self._max_bad_records} are allowed; '
                    f'the last: {name} {reason}. Repair the data, or set max_bad_records higher.')
        logging.warning('Skipped %s, which %s; %d of at most %s bad records of %s.', name, reason, count,
                        self._max_bad_records, self._source)
        return ''


def describe(identifiers, reasons):
    """Returns strings [n] that tell which records are bad and why.

    Args:
        identifiers: string [n], TFDS's identifiers of the examples.
        reasons: string [n], what is wrong with each, beginning with a verb.
    """
    return tf.strings.join([identifiers, reasons], '\n')
