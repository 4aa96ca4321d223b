"""Two devices of this process take the place of servers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe import layers, optimizers
from lingpipe.layers import embeddings
from lingpipe.optimizers import device_placement
from lingpipe.placements import server_rows

SERVERS = ['CPU:1', 'CPU:2']
ROWS = 5


def weight(shape=(ROWS, 3), name='kernel'):
    return keras.Variable(np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 10, name=name)


def cut_and_whole(make_optimizer):
    """Return a cut weight, one that is whole, and the latter's optimizer, which also has the slots of the first."""
    cut, whole = weight(), weight()
    optimizer = device_placement.place(make_optimizer())
    optimizer.build([cut, whole])
    return server_rows.CutWeight(cut, device_placement.of(optimizer).slots_of(cut), SERVERS, make_optimizer), whole, optimizer


def dense(step):
    return tf.random.stateless_normal([ROWS, 3], [1, step])


def of_rows(step):
    return tf.IndexedSlices(tf.random.stateless_normal([4, 3], [2, step]), tf.constant([4, step % 2, 0, 4]), tf.constant([ROWS, 3]))


@pytest.mark.parametrize('make_optimizer', [
    lambda: keras.optimizers.SGD(.1), lambda: keras.optimizers.SGD(.1, momentum=.9, nesterov=True),
    lambda: keras.optimizers.AdamW(.1, weight_decay=.01), lambda: keras.optimizers.Adagrad(.1),
    lambda: keras.optimizers.RMSprop(.1, centered=True)])
@pytest.mark.parametrize('gradient_of', [dense, of_rows])
def test_rows_are_trained_as_the_whole(make_optimizer, gradient_of, assert_close):
    cut, whole, optimizer = cut_and_whole(make_optimizer)
    cut.to_servers()
    for step in range(3):
        gradient = gradient_of(step)
        cut.update(cut.split(gradient), tf.constant(step, tf.int64), tf.constant(.1))
        device_placement.of(optimizer).apply_values(
            [tf.convert_to_tensor(gradient)], [whole], tf.constant(.1), tf.constant(step, tf.int64))
    assert_close(cut.read(), whole.value)
    cut.to_chief()
    assert_close(cut.variable.value, whole.value)
    for slot, other in zip(*(device_placement.of(optimizer).slots_of(each) for each in (cut.variable, whole))):
        assert_close(slot.value, other.value)


def test_each_server_has_its_rows():
    cut, _, _ = cut_and_whole(lambda: keras.optimizers.SGD(.1))
    cut.to_servers()
    assert [part.device[-5:] for part in cut.parts] == SERVERS and [part.shape[0] for part in cut.parts] == [2, 3]
    np.testing.assert_array_equal(cut.parts[1], weight()[2:])


@pytest.mark.parametrize('tokens', [[[0, 4], [4, 2]], [[3]], [[1, 1]]])
def test_a_lookup_brings_the_rows_of_its_tokens_alone(tokens):
    cut, _, _ = cut_and_whole(lambda: keras.optimizers.SGD(.1))
    cut.to_servers()
    table = server_rows.dense_rows(tf.constant(tokens), cut.places, [ROWS, 3]).numpy()
    others = sorted(set(range(ROWS)) - set(np.ravel(tokens)))
    np.testing.assert_array_equal(table[tokens], weight().numpy()[tokens])
    assert not table[others].any()


@pytest.mark.parametrize('shape, dtype, servers, parts', [
    ((1000, 8), 'float32', 4, 4), ((1000, 8), 'float32', 40, 32), ((1000, 8), 'float16', 40, 16), ((2, 10_000), 'float32', 4, 2),
    ((10, 8), 'float32', 4, 1), ((), 'float32', 4, 1)])
def test_a_part_has_a_row_and_enough_bytes(shape, dtype, servers, parts):
    variable = keras.Variable(keras.initializers.Zeros(), shape=shape, dtype=dtype)
    assert server_rows.num_parts(variable, servers, 1000) == parts
    variable.trainable = False
    assert server_rows.num_parts(variable, servers, 1000) == 1


def test_optimizers_that_look_at_a_whole_weight_cut_none():
    assert server_rows.can_cut(keras.optimizers.Adam())
    for optimizer in (keras.optimizers.Lamb(), keras.optimizers.Adafactor(), optimizers.LARS(), keras.optimizers.Muon(.1)):
        assert not server_rows.can_cut(optimizer)


def body(*others):
    embedding = embeddings.TokenEmbedding.Params().Set(name='embedding', vocab_size=ROWS, model_dim=3)
    pipe = lingpipe.GPipeLayer.Params().Set(name='pipe', layers=[embedding, *others]).Instantiate()
    pipe.build_from_specs(tf.TensorSpec([4, 2], tf.int32))
    return pipe


def test_the_table_is_found_where_nobody_else_reads_it():
    dense_layer = layers.KerasParams(keras.layers.Dense, units=2)
    pipe = body(dense_layer)
    assert server_rows.table_of(pipe) is pipe.stack[0].table
    tied = embeddings.SoftmaxHead.Params().Set(vocab_size=ROWS, tied_to='embedding')
    assert server_rows.table_of(body(tied)) is None
