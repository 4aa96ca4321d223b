"""Keras metrics by params, computed over micro-batches, compared with Keras's on the whole batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.models import image_classifier, keras_metrics, keras_task
from tests import needs

RNG = np.random.default_rng(0)
ROWS, CLASSES = 7, 4
IMAGES = RNG.normal(size=(ROWS, 6)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, ROWS).astype(np.int32)
WEIGHTS = np.array([1.0, 2.0, 0.5, 1.0, 3.0, 0.0, 0.0], np.float32)


def make_task(*metrics, num_partitions=2, num_micro_batches=3, **fields):
    keras.utils.set_random_seed(1)
    p = image_classifier.ImageClassifier.Params().Set(name='task', metrics=list(metrics), **fields)
    p.body.Set(num_partitions=num_partitions, num_micro_batches=num_micro_batches, layers=[
        KerasParams(keras.layers.Dense, units=8, activation='relu'), KerasParams(keras.layers.Dense, units=CLASSES)])
    task = p.Instantiate()
    task.body.build_from_specs(tf.TensorSpec([ROWS, 6]))
    return task


def evaluated(task, targets=(LABELS, WEIGHTS)):
    sums = task.body.evaluate(task.loss_and_metrics, IMAGES, targets)
    return {name: float(task.loss_and_metrics.results[name](*parts))
            for name, parts in sums.items() if name in task.loss_and_metrics.results}


def trained(task, targets=(LABELS, WEIGHTS)):
    metrics = tf.function(lambda: task.body.value_and_grad(task.loss_and_metrics, IMAGES, targets).metrics)()
    return {name: float(metrics[name]) for name in task.loss_and_metrics.results}


def of_keras(metric, labels, outputs, weights=WEIGHTS):
    metric.update_state(labels, outputs, sample_weight=weights)
    return float(metric.result())


def one_hot():
    return keras.ops.one_hot(LABELS, CLASSES)


def test_metrics_of_micro_batches_are_those_of_the_batch():
    of_classes = keras_metrics.OfClasses
    task = make_task(
        KerasParams(keras.metrics.SparseTopKCategoricalAccuracy, k=2),
        KerasParams(of_classes, metric=KerasParams(keras.metrics.Precision)),
        KerasParams(of_classes, metric=KerasParams(keras.metrics.Recall), class_id=1),
        KerasParams(of_classes, metric=KerasParams(keras.metrics.AUC, curve='PR'), name='average_precision'),
        KerasParams(keras.metrics.MeanIoU, num_classes=CLASSES, sparse_y_pred=False))
    logits = task.body(IMAGES)
    probabilities = keras.ops.softmax(logits)
    expected = {
        'sparse_top_k_categorical_accuracy': of_keras(
            keras.metrics.SparseTopKCategoricalAccuracy(k=2), LABELS, logits),
        'precision': of_keras(keras.metrics.Precision(), one_hot(), probabilities),
        'recall': of_keras(keras.metrics.Recall(), one_hot()[:, 1:2], probabilities[:, 1:2]),
        'average_precision': of_keras(keras.metrics.AUC(curve='PR'), one_hot(), probabilities),
        'mean_io_u': of_keras(keras.metrics.MeanIoU(CLASSES, sparse_y_pred=False), LABELS, logits)}
    for found in (evaluated(task), trained(task)):
        assert found == pytest.approx(expected, rel=1e-5)


def test_replicas_and_partitions_do_not_change_a_metric():
    metric = KerasParams(keras_metrics.OfClasses, metric=KerasParams(keras.metrics.F1Score, average='macro'))
    expected = evaluated(make_task(metric, num_partitions=1, num_micro_batches=1))
    assert evaluated(make_task(metric)) == pytest.approx(expected, rel=1e-5)


@needs.keras_hub
def test_perplexity_counts_tokens():
    import keras_hub
    task = make_task(KerasParams(keras_hub.metrics.Perplexity, from_logits=True))
    expected = of_keras(keras_hub.metrics.Perplexity(from_logits=True), LABELS, task.body(IMAGES))
    assert evaluated(task)['perplexity'] == pytest.approx(expected, rel=1e-5)


def test_any_keras_loss_trains_a_body():
    keras.utils.set_random_seed(1)
    p = keras_task.KerasTask.Params().Set(
        name='task', loss=KerasParams(keras.losses.Huber), metrics=[KerasParams(keras.metrics.MeanAbsoluteError)])
    p.body.Set(num_partitions=2, num_micro_batches=3, layers=[
        KerasParams(keras.layers.Dense, units=8), KerasParams(keras.layers.Dense, units=1)])
    task = p.Instantiate()
    task.body.build_from_specs(tf.TensorSpec([ROWS, 6]))
    labels = RNG.normal(size=(ROWS, 1)).astype(np.float32)
    out = tf.function(lambda: task.body.value_and_grad(task.loss_and_metrics, IMAGES, (labels, WEIGHTS)))()
    plain = keras.losses.Huber(reduction='mean_with_sample_weight')
    with tf.GradientTape() as tape:
        outputs = task.body(IMAGES, training=True)
        loss = plain(labels, outputs, sample_weight=WEIGHTS)
    assert float(out.loss) == pytest.approx(float(loss), rel=1e-5)
    assert float(out.metrics['mean_absolute_error']) == pytest.approx(
        of_keras(keras.metrics.MeanAbsoluteError(), labels, outputs), rel=1e-5)
    variables = [variable.value for variable in task.body.trainable_variables]
    for found, expected in zip(out.gradients, tape.gradient(loss, variables)):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@keras.saving.register_keras_serializable('tests')
class Largest(keras.metrics.Metric):
    """The largest output, which is no sum."""

    def __init__(self, name='largest', dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.largest = self.add_weight(name='largest', initializer='zeros')

    def update_state(self, y_true, y_pred, sample_weight=None):
        del y_true, sample_weight
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(y_pred)))

    def result(self):
        return self.largest.value


@pytest.mark.parametrize('metric, message', [
    (KerasParams(Largest), "'largest' .Largest. of task.metrics has variables that do not add up"),
    (KerasParams(keras_metrics.OfClasses, metric=KerasParams(keras.metrics.F1Score)), 'but a curve shows one number'),
    (KerasParams(keras.metrics.Precision), "'precision' .Precision. of task.metrics cannot be computed of labels"),
    (KerasParams(keras.losses.Huber), r'metrics\[0\] is Huber, but it must be the params of a Keras metric'),
    (KerasParams(keras.metrics.SparseCategoricalAccuracy, name='accuracy'), "'accuracy' is the name of two metrics")])
def test_what_cannot_be_computed_in_parts_is_refused(metric, message):
    with pytest.raises(ValueError, match=message):
        evaluated(make_task(metric))


@pytest.mark.parametrize('loss, message', [
    (None, 'task.loss is None, but it must be the params of a Keras loss'),
    (KerasParams(keras.losses.Huber, reduction='sum'), "reduction='sum' is not for training on parts")])
def test_what_is_no_mean_over_examples_is_no_loss(loss, message):
    p = keras_task.KerasTask.Params().Set(name='task', loss=loss)
    p.body.Set(layers=[KerasParams(keras.layers.Dense, units=1)])
    with pytest.raises(ValueError, match=message):
        p.Instantiate()
