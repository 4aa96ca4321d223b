import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe import layers
from lingpipe.input import image_input
from lingpipe.models import image_classifier


def make_task(**fields):
    params = image_classifier.ImageClassifier.Params().Set(name='task', **fields)
    params.body.layers = [layers.KerasParams(keras.layers.Dense, units=3)]
    return params.Instantiate()


LABELS = tf.constant([2, 0, 1, 1])
LOGITS = tf.constant([[1.0, 0.5, 3.0], [0.0, 2.0, -1.0], [0.2, 0.1, 0.0], [-5.0, 8.0, 0.0]])
ONES = tf.ones([4])


@pytest.mark.parametrize('smoothing', [0.0, 0.1, 0.5])
def test_the_loss_is_that_of_keras(smoothing):
    keras_loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
    metrics = make_task(label_smoothing=smoothing).loss((LABELS, ONES), LOGITS)
    loss, weight = metrics['loss']
    np.testing.assert_allclose(loss, keras_loss(tf.one_hot(LABELS, 3), LOGITS), rtol=1e-6)
    assert float(weight) == 4.0


def test_an_example_counts_by_its_weight():
    weights = tf.constant([1.0, 0.0, 2.0, 1.0])
    metrics = make_task().loss((LABELS, weights), LOGITS)
    each = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)(LABELS, LOGITS).numpy()
    np.testing.assert_allclose(metrics['loss'][0], (each[0] + 2 * each[2] + each[3]) / 4, rtol=1e-6)
    # Right are the first and the last; the second, which is wrong, does not count.
    assert [float(value) for value in metrics['accuracy']] == [0.5, 4.0]


def test_a_micro_batch_of_nothing_but_filling_is_no_division_by_zero():
    metrics = make_task().loss((LABELS, tf.zeros([4])), LOGITS)
    assert {name: (float(mean), float(weight)) for name, (mean, weight) in metrics.items()} == {
        'loss': (0.0, 0.0), 'accuracy': (0.0, 0.0)}


def test_the_auxiliary_loss_is_weighted_and_leaves_the_accuracy():
    task = make_task(label_smoothing=0.1, auxiliary_loss_weight=0.25)
    auxiliary = tf.reverse(LOGITS, [1])
    both = task.loss((LABELS, ONES), (LOGITS, auxiliary))
    main, other = (task.loss((LABELS, ONES), logits) for logits in (LOGITS, auxiliary))
    np.testing.assert_allclose(both['loss'][0], main['loss'][0] + 0.25 * other['loss'][0], rtol=1e-6)
    assert float(both['accuracy'][0]) == float(main['accuracy'][0]) != float(other['accuracy'][0])


@pytest.mark.parametrize('last, warns', [
    (layers.KerasParams(keras.layers.Dense, units=10), False),
    (layers.KerasParams(keras.layers.Dense, units=10, activation='softmax'), True),
    (layers.KerasParams(keras.layers.Softmax), True)])
def test_softmax_at_the_end_is_warned_of(last, warns, caplog):
    data = image_input.ImageInput.Params().Set(batch_size=4, image_size=8).Instantiate()
    params = image_classifier.ImageClassifier.Params().Set(name='task')
    params.body.layers = [layers.KerasParams(keras.layers.Flatten), layers.KerasParams(keras.layers.Dense, units=10), last]
    task = params.Instantiate()
    task.body.build_from_specs(data.input_spec)
    task.check_input(data)
    assert ('ends in softmax' in caplog.text) == warns
