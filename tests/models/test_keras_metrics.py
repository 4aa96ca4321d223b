import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.models import image_classifier, keras_task
from lingpipe.models.keras_metrics import OfClasses
from lingpipe.training import evaluation
from tests import needs

NUM_CLASSES, WIDTH = 4, 5
METRICS = keras.metrics
LOGITS = KerasParams(keras.losses.SparseCategoricalCrossentropy, from_logits=True)


def of_classes(metric, **settings):
    return KerasParams(OfClasses, metric=metric, **settings)


# Of labels `[batch]` that are class numbers, and outputs `[batch, classes]` that are logits.
OF_LOGITS = {
    'accuracy': KerasParams(METRICS.SparseCategoricalAccuracy),
    'top_2': KerasParams(METRICS.SparseTopKCategoricalAccuracy, k=2),
    'cross_entropy': KerasParams(METRICS.SparseCategoricalCrossentropy, from_logits=True),
    'mean_iou': KerasParams(METRICS.MeanIoU, num_classes=NUM_CLASSES, sparse_y_pred=False),
    'precision_of_class_1': of_classes(KerasParams(METRICS.Precision, thresholds=0.3), class_id=1),
    'recall': of_classes(KerasParams(METRICS.Recall, top_k=2)),
    'auc': of_classes(KerasParams(METRICS.AUC, multi_label=True, num_labels=NUM_CLASSES)),
    'average_precision': of_classes(KerasParams(METRICS.AUC, curve='PR', num_thresholds=20)),
    'f1': of_classes(KerasParams(METRICS.F1Score, average='macro')),
    'true_positives': of_classes(KerasParams(METRICS.TruePositives, thresholds=0.25))}


def named(metrics):
    return [params.Copy().Set(name=name) for name, params in metrics.items()]


def examples(num_rows, seed=0):
    """Return arrays: inputs, classes and weights."""
    random = np.random.default_rng(seed)
    return (random.normal(size=(num_rows, WIDTH)).astype('float32'),
            random.integers(0, NUM_CLASSES, num_rows).astype('int32'),
            random.uniform(0.5, 2.0, num_rows).astype('float32'))


def make_task(metrics, num_outputs=NUM_CLASSES, loss=LOGITS, layers=None, **body):
    params = keras_task.KerasTask.Params().Set(name='task', loss=loss, metrics=metrics)
    layers = layers or [KerasParams(keras.layers.Dense, units=6, activation='relu'),
                        KerasParams(keras.layers.Dense, units=num_outputs)]
    params.body.Set(layers=layers, random_seed=0, **body)
    keras.utils.set_random_seed(0)
    task = params.Instantiate()
    task.body.build((None, WIDTH))
    return task


def plain(task):
    """Return the layers of a task on one device, with its weights and metrics."""
    model = keras.Sequential([keras.Input((WIDTH,)), *[each.Instantiate() for each in task.params.body.layers]])
    for variable, source in zip(model.weights, [w for layer in task.body.stack for w in layer.weights]):
        variable.assign(source.numpy())
    model.compile(loss=task.params.loss.Instantiate(), weighted_metrics=[each.Instantiate() for each in
                                                                         task.params.metrics])
    return model


def expected(task, x, y, weights):
    found = plain(task).evaluate(x, y, sample_weight=weights, batch_size=len(x), verbose=0, return_dict=True)
    return {name: value for name, value in found.items() if name != 'loss'}


def padded_batches(batch_size, *arrays):
    """Return a dataset whose last batch is filled up with examples of weight 0."""
    missing = -len(arrays[0]) % batch_size
    filled = [np.concatenate([array, array[:missing]]) for array in arrays]
    filled[-1][len(arrays[0]):] = 0.0
    return tf.data.Dataset.from_tensor_slices(tuple(filled)).batch(batch_size, drop_remainder=True)


SETTINGS = {
    'one device': {},
    'micro-batches': {'num_partitions': 2, 'num_micro_batches': 3},
    'replicas': {'num_partitions': 2, 'num_micro_batches': 2, 'num_replicas': 2},
    'compiled': {'num_partitions': 2, 'num_micro_batches': 2, 'jit_compile': True}}


@pytest.mark.parametrize('setting', [
    pytest.param(name, marks=needs.xla_on_cpus if name == 'compiled' else ()) for name in SETTINGS])
def test_a_step_measures_its_whole_batch_as_plain_keras_does(setting, assert_close):
    task = make_task(named(OF_LOGITS), **SETTINGS[setting])
    x, y, weights = examples(14)
    out = task.body.value_and_grad(task.loss_and_metrics, x, (y, weights))
    assert_close(out.metrics, expected(task, x, y, weights))


@pytest.mark.parametrize('setting', ['one device', 'replicas'])
def test_an_evaluation_measures_the_whole_dataset_as_plain_keras_does(setting, assert_close):
    task = make_task(named(OF_LOGITS), **SETTINGS[setting])
    x, y, weights = examples(19)
    found = evaluation.Evaluator(task).run(padded_batches(8, x, y, weights))
    assert_close({name: found[name] for name in OF_LOGITS}, expected(task, x, y, weights))


def test_numbers_that_are_small_differences_of_large_ones_add_up():
    """Keras counts false negatives as all positives less the true ones, where rounding leaves something."""
    targets = tf.TensorSpec([8], tf.int32), tf.TensorSpec([8], tf.float32)
    metric = of_classes(KerasParams(METRICS.AUC, num_thresholds=20))
    assert make_task([metric], num_outputs=10).metric_names(targets) == {'loss', 'auc'}


def test_a_metric_of_classes_is_saved_with_its_model():
    metric = OfClasses(METRICS.AUC(num_thresholds=20), class_id=2)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert (again.metric.num_thresholds, again.class_id, again.name) == (20, 2, metric.name)


def test_a_binary_classifier_ends_in_one_logit(assert_close):
    metrics = named({'auc': of_classes(KerasParams(METRICS.AUC, from_logits=False)),
                     'recall': of_classes(KerasParams(METRICS.Recall))})
    task = make_task(metrics, num_outputs=1, loss=KerasParams(keras.losses.BinaryCrossentropy, from_logits=True),
                     num_micro_batches=2)
    x, y, weights = examples(12)
    labels = (y > 1).astype('int32')
    model = plain(task)
    probabilities = keras.ops.sigmoid(model(x))[:, 0]
    wanted = {}
    for name, metric in (('auc', METRICS.AUC()), ('recall', METRICS.Recall())):
        metric.update_state(labels, probabilities, sample_weight=weights)
        wanted[name] = metric.result()
    assert_close(task.body.value_and_grad(task.loss_and_metrics, x, (labels, weights)).metrics, wanted)


@needs.keras_hub
def test_the_perplexity_of_keras_hub_is_over_all_tokens(assert_close):
    import keras_hub

    layers = [KerasParams(keras.layers.RepeatVector, n=3), KerasParams(keras.layers.Dense, units=NUM_CLASSES)]
    task = make_task([KerasParams(keras_hub.metrics.Perplexity, from_logits=True, mask_token_id=2)], layers=layers,
                     num_partitions=2, num_micro_batches=2)
    random = np.random.default_rng(1)
    x, labels = examples(7)[0], random.integers(0, NUM_CLASSES, (7, 3)).astype('int32')
    weights = random.integers(0, 2, (7, 3)).astype('float32')
    found = evaluation.Evaluator(task).run(padded_batches(4, x, labels, weights))
    each = keras.losses.SparseCategoricalCrossentropy(True, reduction=None)(labels, plain(task)(x)).numpy()
    assert_close(found['perplexity'], np.exp(np.average(each, weights=weights * (labels != 2))))


def test_an_image_classifier_measures_its_main_logits(assert_close):
    params = image_classifier.ImageClassifier.Params().Set(
        name='task', metrics=[KerasParams(METRICS.SparseTopKCategoricalAccuracy, k=1, name='top_1')])
    params.body.layers = [KerasParams(keras.layers.Dense, units=NUM_CLASSES)]
    task = params.Instantiate()
    x, y, weights = map(tf.constant, examples(6))
    logits = task.body(x)
    metrics = task.loss_and_metrics((y, weights), (logits, -logits))
    sums, (total, weight) = metrics['top_1'], metrics['accuracy']
    assert_close(task.loss_and_metrics.results['top_1'](*sums), total / weight)


# ---- what is refused ------------------------------------------------------------------------------------------------

class Largest(METRICS.Metric):
    """Keeps the largest output of any batch."""

    def __init__(self, name=None):
        super().__init__(name=name)
        self.largest = self.add_variable((), 'zeros')

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(y_pred)))

    def result(self):
        return self.largest + 0.0


class RowCount(METRICS.Sum):
    """Counts rows whatever they weigh."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(keras.ops.ones_like(sample_weight))


class TwoNumbers(METRICS.SparseCategoricalAccuracy):
    def result(self):
        return {'one': super().result(), 'other': 1.0}


@pytest.mark.parametrize('metrics, message', [
    ([KerasParams(Largest)], r"'largest' \(Largest\) of task.metrics has variables that do not add up over the parts"),
    ([KerasParams(RowCount)], "'sum' .* counts examples of weight 0 too"),
    ([of_classes(KerasParams(METRICS.F1Score))], r"'f1_score' .* returns float32 \[4\], but a curve .*average='macro'"),
    ([KerasParams(TwoNumbers)], r"\(TwoNumbers\) of task.metrics returns dict, but a curve shows one"),
    ([KerasParams(METRICS.Recall)],
     r"'recall' \(Recall\) of task.metrics cannot be computed of labels int32 \[8\], outputs float32 \[8, 4\] and "
     r'weights float32 \[8\]: [\s\S]+\. Choose .*KerasParams\(OfClasses'),
    ([KerasParams(METRICS.SparseCategoricalAccuracy, name='loss')], "'loss' is the name of two metrics"),
], ids=['not additive', 'ignores weights', 'vector', 'dictionary', 'other shapes', 'name of the loss'])
def test_what_would_be_another_number_is_refused_before_the_first_step(metrics, message):
    targets = tf.TensorSpec([8], tf.int32), tf.TensorSpec([8], tf.float32)
    with pytest.raises(ValueError, match=message):
        make_task(metrics).metric_names(targets)


@pytest.mark.parametrize('metrics, message', [
    ([KerasParams(keras.layers.Dense, units=1)], r'metrics\[0\] is Dense, but it must be the params of a Keras metric'),
    (['accuracy'], r"metrics\[0\] is 'accuracy', but it must be the params"),
    ([KerasParams(METRICS.AUC), KerasParams(METRICS.AUC, curve='PR')],
     r"metrics\[1\] is called 'auc', as a metric before it is. Give it another name")], ids=['layer', 'text', 'twice'])
def test_entries_that_are_no_metrics_are_refused_at_once(metrics, message):
    with pytest.raises(ValueError, match=message):
        make_task(metrics)
