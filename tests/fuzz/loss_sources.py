"""Losses of the user's own, as source: means over all examples, and what is no mean over them."""

_HEAD = '''\
def {name}(y_true, outputs):
    pairs = list(zip(tf.nest.flatten(y_true), tf.nest.flatten(outputs))){some}
    pairs = [(y, tf.cast(output, y.dtype)) for y, output in pairs]
'''
_BODIES = {
    'scalar': 'tf.add_n([tf.reduce_mean(tf.square(output - y)) for y, output in pairs])',
    'examples': 'tf.add_n([tf.reduce_mean(error, list(range(1, error.shape.rank)))\n'
                '                     for error in [tf.square(output - y) for y, output in pairs]])',
    'masked': 'tf.add_n([tf.reduce_sum(tf.square(output - y) * mask) / tf.reduce_sum(mask)\n'
              '                     for y, output, mask in [(y, output, tf.cast(y != 0.0, y.dtype)) for y, output in pairs]])',
    'by_positives': 'tf.add_n([tf.reduce_sum(tf.square(output - y)) / tf.maximum(\n'
                    '        tf.reduce_sum(tf.cast(y > 0.0, y.dtype)), 1.0) for y, output in pairs])',
    'of_pairs': 'tf.add_n([tf.reduce_mean(tf.reduce_logsumexp(tf.matmul(rows, rows, transpose_b=True), -1))\n'
                '                     for rows in [tf.reshape(output - y, [tf.shape(y)[0], -1]) for y, output in pairs]])',
    'root': 'tf.sqrt(0.01 + tf.add_n([tf.reduce_mean(tf.square(output - y)) for y, output in pairs]))'}
WHOLE = ('masked', 'by_positives', 'of_pairs', 'root')  # that need all examples at once
PADDED = ('masked', 'by_positives')
_OF_LABELS = '''\
def loss(y_true, outputs):
    mask = tf.cast(y_true != 0, 'float32')
    losses = keras.losses.sparse_categorical_crossentropy(y_true, outputs, from_logits=True)
    return tf.reduce_sum(losses * tf.cast(mask, losses.dtype)) / tf.cast(tf.reduce_sum(mask), losses.dtype)
'''


def source_of(kind, some='', name='loss'):
    """Return the source of a function."""
    if kind == 'labels':
        return _OF_LABELS
    return f'{_HEAD.format(name=name, some=some)}    return {_BODIES[kind]}\n'
