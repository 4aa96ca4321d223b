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
    'masked': 'tf.add_n([tf.reduce_sum(tf.square(output - y) * mask) / tf.maximum(tf.reduce_sum(mask), 1.0)\n'
              '                     for y, output, mask in [\n'
              '                         (y, output, tf.cast(y > 0.0, y.dtype)) for y, output in pairs]])',
    'of_pairs': 'tf.add_n([tf.reduce_mean(tf.reduce_logsumexp(tf.matmul(rows, rows, transpose_b=True), -1))\n'
                '                     for rows in [\n'
                '                         tf.reshape(output - y, [tf.shape(y)[0], -1]) for y, output in pairs]])'}
WHOLE = ['masked', 'of_pairs']  # that need all examples at once


def source_of(kind, some='', name='loss'):
    """Return the source of a function."""
    return f'{_HEAD.format(name=name, some=some)}    return {_BODIES[kind]}\n'
