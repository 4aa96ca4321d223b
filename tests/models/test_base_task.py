import keras
import pytest
import tensorflow as tf

from lingpipe import layers
from lingpipe.models import base_task, image_classifier


class Regression(base_task.BaseTask):
    """Mean squared error of one number, and its largest part."""

    def loss(self, targets, outputs):
        squares = tf.square(outputs[:, 0] - targets)
        rows = tf.cast(tf.size(squares), tf.float32)
        return {'loss': (tf.reduce_mean(squares), rows), 'worst': (tf.reduce_max(squares), rows)}


def test_the_names_of_the_metrics_are_known_without_running_the_pipeline():
    p = Regression.Params().Set(name='regression')
    p.body.Set(layers=[layers.KerasParams(keras.layers.Dense, units=1)], num_micro_batches=2)
    task = p.Instantiate()
    task.body.build((None, 3))
    assert task.metric_names(tf.TensorSpec([4], tf.float32)) == {'loss', 'worst'}


def test_a_task_without_a_loss_asks_for_one():
    p = base_task.BaseTask.Params().Set(name='task')
    p.body.Set(layers=[layers.KerasParams(keras.layers.Dense, units=1)])
    with pytest.raises(NotImplementedError, match='BaseTask defines no loss. Write its method loss'):
        p.Instantiate().loss(None, None)


@pytest.mark.parametrize('fields, message', [
    ({'label_smoothing': 2}, r'^task.label_smoothing=2 is not possible: it must be in \[0, 1\)'),
    ({'label_smoothing': float('nan')}, '^task.label_smoothing=nan'), ({'metrics': None}, '^task.metrics=None .* be a list')])
def test_a_wrong_field_is_refused_before_anything_is_built(fields, message):
    with pytest.raises(ValueError, match=message):
        image_classifier.ImageClassifier.Params().Set(**fields).Instantiate()
