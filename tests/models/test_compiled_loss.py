"""Losses of every kind in `fit`, inside the pipeline or on the whole batch, against plain Keras."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe

layers, ops = keras.layers, keras.ops
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(7, 5)).astype('float32'), RANDOM.uniform(size=(7, 3)).astype('float32')
WEIGHTS = RANDOM.uniform(0.1, 1.0, size=7).astype('float32')
mse = keras.losses.MeanSquaredError


def scalar(y_true, outputs):
    return ops.mean(ops.square(outputs - y_true))


def mixed(y_true, outputs):
    return ops.mean(ops.square(outputs - ops.mean(outputs, 0) - y_true), -1)


def masked(y_true, outputs):
    """TensorFlow's Transformer tutorial: the mean over what is not padding."""
    mask = ops.cast(y_true > 0.3, 'float32')
    return ops.sum(mask * ops.square(outputs - y_true)) / ops.sum(mask)


def contrastive(y_true, outputs):
    similarities = ops.matmul(outputs, ops.transpose(y_true))
    return ops.mean(ops.logsumexp(similarities, -1) - ops.sum(outputs * y_true, -1))


def models(make_source=None, **fields):
    keras.utils.set_random_seed(0)
    plain = (make_source or make_model)()
    source = (make_source or make_model)()
    source.set_weights(plain.get_weights())
    fields = {'num_partitions': 2, 'num_micro_batches': 2, **fields}
    return plain, lingpipe.PipelineModel(lingpipe.GPipeLayer.from_keras(source, **fields))


def make_model():
    return keras.Sequential([keras.Input([5]), layers.Dense(4, 'tanh'), layers.Dense(3, name='head')])


def train(model, loss, y=Y, sample_weight=None, **compiled):
    model.compile(keras.optimizers.SGD(0.1), loss(model) if getattr(loss, 'makes', False) else loss, **compiled)
    log = model.train_on_batch(X, y, sample_weight=sample_weight, return_dict=True)['loss']
    return [log, *[weight.numpy() for weight in model.trainable_variables]]


LABELS = np.where(np.arange(7)[:, None] < 3, Y > 0.5, np.sign(Y - 0.5))  # 0 and 1, and from row 3 on -1 too


@pytest.mark.parametrize('loss, y, sample_weight', [
    (mse(reduction='sum'), Y, WEIGHTS), (mse(reduction='none'), Y, WEIGHTS), (scalar, Y, WEIGHTS), (['mse'], Y, None),
    (masked, Y, None), (contrastive, Y, None), (keras.losses.CosineSimilarity(axis=0), Y, None),
    (keras.losses.BinaryCrossentropy(True, axis=-2), Y, None), (keras.losses.Hinge(), LABELS, None)])
def test_a_loss_means_what_it_means_in_keras(loss, y, sample_weight, assert_close):
    plain, pipelined = models()
    assert_close(train(pipelined, loss, y, sample_weight), train(plain, loss, y, sample_weight))


def make_tagger():
    return keras.Sequential([keras.Input([4], dtype='int32'), layers.Embedding(9, 3, mask_zero=True), layers.Dense(2)])


class SumOfSquares(keras.losses.Loss):
    def call(self, y_true, outputs):
        return ops.sum(ops.square(outputs - y_true))


@pytest.mark.parametrize('loss', [scalar, SumOfSquares(reduction='sum'), SumOfSquares()])
def test_a_number_for_masked_outputs_is_weighed_by_the_whole_mask(loss, assert_close):
    plain, pipelined = models(make_tagger, num_micro_batches=3)
    x = (np.arange(28).reshape(7, 4) % 8 + 1) * (np.arange(4) < np.array([4, 4, 4, 1, 1, 1, 0])[:, None])
    y = RANDOM.normal(size=(7, 4, 2)).astype('float32')
    found, expected = [[model.train_on_batch(x, y), *model.get_weights()] for model in (pipelined, plain)
                       if model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False) is None]
    assert_close(found, expected)


def make_products():
    inputs = keras.Input([5])
    one, other = layers.Dense(3)(inputs), layers.Dense(3, 'tanh')(inputs)
    return keras.Model(inputs, ops.sigmoid(ops.sum(one * other, -1)))


@pytest.mark.parametrize('loss, sample_weight', [
    ('mse', None), ('mse', WEIGHTS), ('binary_crossentropy', WEIGHTS), (mse(reduction='sum'), None),
    ('kl_divergence', None), ('cosine_similarity', None)])
def test_outputs_without_features_are_one_example_as_in_keras(loss, sample_weight, assert_close):
    plain, pipelined = models(make_products, num_micro_batches=3)
    target = Y[:, 0]
    assert_close(train(pipelined, loss, target, sample_weight), train(plain, loss, target, sample_weight))


@pytest.mark.parametrize('loss, length, weights', [
    ('mse', 7, WEIGHTS), ('mse', 7, WEIGHTS[:, None]), (mse(reduction='mean_with_sample_weight'), 4, WEIGHTS[:, None])])
def test_weights_of_fewer_dimensions_count_as_in_keras(loss, length, weights, assert_close):
    plain, pipelined = models(lambda: keras.Sequential(
        [keras.Input([5]), layers.Dense(2 * length), layers.Reshape([length, 2])]))
    target = np.repeat(Y[:, None, :2], length, 1)
    assert_close(train(pipelined, loss, target, weights), train(plain, loss, target, weights))


class PerValue(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return ops.square(y_true - y_pred)


@pytest.mark.parametrize('loss', [PerValue(), lambda y_true, outputs: ops.square(y_true - outputs)])
def test_weights_of_values_are_those_of_their_last_dimension(loss, assert_close):
    plain, pipelined = models()
    weights, results = np.array([0.5, 1, 2], 'float32'), []
    for model in (pipelined, plain):
        model.compile(keras.optimizers.SGD(0.1), loss)
        log = model.train_on_batch(X[:3], Y[:3], sample_weight=weights, return_dict=True)['loss']
        results.append([log, *[weight.numpy() for weight in model.trainable_variables]])
    assert_close(*results)


def test_a_loss_that_reads_a_weight_has_its_gradient(assert_close):
    def with_penalty(model):
        kernel = model.trainable_variables[0]
        return lambda y_true, outputs: ops.mean(ops.square(outputs - y_true)) + 0.1 * ops.sum(ops.square(kernel))

    with_penalty.makes = True
    plain, pipelined = models()
    assert_close(train(pipelined, with_penalty), train(plain, with_penalty))


def test_a_loss_that_reads_state_finds_it_changed(assert_close):
    def with_mean(model):
        mean = model.non_trainable_variables[0]
        return lambda y_true, outputs: ops.mean(ops.square(outputs - y_true)) * ops.sum(ops.square(mean))

    def with_norm():
        return keras.Sequential([keras.Input([5]), layers.BatchNormalization(), layers.Dense(3)])

    with_mean.makes = True
    plain, pipelined = models(with_norm, num_micro_batches=1)
    assert_close(train(pipelined, with_mean), train(plain, with_mean))


def make_saturated_heads():
    inputs = keras.Input([5])
    early = layers.Dense(3, 'sigmoid', kernel_initializer=keras.initializers.Constant(40.0))(inputs)
    late = layers.Dense(3)(layers.Dense(4, 'tanh')(inputs))
    return keras.Model(inputs, [early, layers.Activation('softmax')(late * 90.0)])


@pytest.mark.parametrize('loss', [['binary_crossentropy', 'categorical_crossentropy'], ['binary_crossentropy', mixed]])
def test_cross_entropies_use_the_logits_of_saturated_outputs(loss, assert_close):
    plain, pipelined = models(make_saturated_heads)
    targets = [Y.round(), np.eye(3)[np.arange(7) % 3]]
    for model in (plain, pipelined):
        model.log = [train(model, loss, targets), model.test_on_batch(X, targets)]
    assert_close(pipelined.log, plain.log)


def subclass(model, methods):
    base = type(model)
    kind = type('Own', (methods, base), {})
    return kind(model.pipe) if hasattr(model, 'pipe') else kind(model.inputs, model.outputs[0])


class OwnLoss:
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight) + ops.sqrt(ops.mean(ops.square(y_pred)))


class OwnStep:
    def train_step(self, data):
        x, y, _ = data
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.abs(self(x, training=True) - y))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {'loss': loss}


class OwnMetrics:
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {**super().compute_metrics(x, y, y_pred, sample_weight), 'loss': ops.mean(y_pred)}


class OwnCall:
    def call(self, inputs, training=None, mask=None):
        return 2.0 * super().call(inputs, training=training)


@pytest.mark.parametrize('methods', [OwnLoss, OwnStep, OwnMetrics, OwnCall])
def test_what_a_subclass_overrides_counts(methods, assert_close):
    plain, pipelined = (subclass(model, methods) for model in models(make_functional))
    assert_close(train(pipelined, 'mse'), train(plain, 'mse'))


def make_functional():
    inputs = keras.Input([5])
    return keras.Model(inputs, layers.Dense(3)(layers.Dense(4, 'tanh')(inputs)))


class OwnPenalty:
    @property
    def losses(self):
        return [*super().losses, 1.0]


class OwnInner:
    def _compute_loss(self, *args, **kwargs):
        return 3.0 * super()._compute_loss(*args, **kwargs)


class OwnWeight:
    def __init__(self, *args):
        super().__init__(*args)
        self.scale = self.add_weight(shape=(), name='scale')


@pytest.mark.parametrize('methods, words', [
    (OwnPenalty, 'overrides.*Put what they do into its layers'), (OwnInner, 'overrides.*Put what they do into its layers'),
    (OwnLoss, r"class Own overrides \['compute_loss'\].*subclass of PipelineModel")])
def test_what_a_pipeline_never_asks_of_its_source_is_refused(methods, words):
    source = subclass(make_functional(), methods)
    model = lingpipe.PipelineModel(lingpipe.GPipeLayer.from_keras(source, num_partitions=2))
    for use in (lambda: model.compile('sgd', 'mse'), lambda: model.predict(X, verbose=0)):
        with pytest.raises(ValueError, match=words):
            use()


def test_weights_outside_of_layers_are_refused():
    inputs = keras.Input([5])
    with pytest.raises(ValueError, match='scale.*weights that no layer of it has'):
        lingpipe.GPipeLayer.from_keras(type('Own', (OwnWeight, keras.Model), {})(inputs, layers.Dense(3)(inputs)))
    _, model = models(make_functional)
    owner = subclass(model, OwnLoss)
    owner.scale = owner.add_weight(shape=(), name='scale')
    with pytest.raises(ValueError, match='weights that no layer of its pipeline has'):
        train(owner, 'mse')


def test_a_frozen_model_with_a_trainable_layer_is_refused():
    _, model = models(make_functional)
    model.trainable, model.layers[-1].trainable = False, True
    with pytest.raises(ValueError, match='has trainable=False, so that Keras would train nothing'):
        train(model, 'mse')
    model.compile(None, 'mse')
    with pytest.raises(ValueError, match='for evaluation only'):
        model.fit(X, X[:, :3], verbose=0)


def test_ranks_of_targets_and_weights_may_change(assert_close):
    results = []
    for model in models(lambda: keras.Sequential([keras.Input([8, 5]), layers.Dense(4), layers.Dense(3)])):
        model.compile('sgd', 'mse', run_eagerly=True)
        x, y = np.ones([8, 8, 5], 'float32'), np.ones([8, 8, 3], 'float32')
        results.append([model.fit(x, y, sample_weight=weights, verbose=0, shuffle=False).history['loss']
                        for weights in (np.ones([8, 8]), np.arange(8.0))])
    assert_close(*results)


def test_a_loss_on_the_whole_batch_says_that_the_schedule_does_not_hold():
    _, pipelined = models(schedule='1f1b')
    with pytest.warns(UserWarning, match="loss 'mixed' does not show .* order of GPipe"):
        train(pipelined, mixed)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        train(pipelined, scalar)


def test_an_optional_input_that_is_missing_trains_as_in_keras(assert_close):
    class Both(layers.Layer):
        def call(self, pair):
            return pair[0] if pair[1] is None else pair[0] + pair[1]

        def compute_output_shape(self, input_shape):
            return input_shape[0]

    def make():
        inputs = {'x': keras.Input([5], name='x'), 'more': keras.Input([5], name='more', optional=True)}
        return keras.Model(inputs, layers.Dense(3)(layers.Dense(4)(Both()([inputs['x'], inputs['more']]))))

    found = []
    for model in models(make):
        model.compile(keras.optimizers.SGD(0.1), 'mse')
        found.append([model.fit({'x': X, 'more': None}, Y, verbose=0).history['loss'], *model.get_weights()])
    assert_close(found[1], found[0])


def test_an_empty_batch_changes_nothing():
    _, pipelined = models()
    pipelined.compile('sgd', 'mse')
    before = pipelined.get_weights()
    assert pipelined.test_on_batch(X[:0], Y[:0]) == 0.0
    assert pipelined.predict_on_batch(X[:0]).shape == (0, 3)
    pipelined.train_on_batch(X[:0], Y[:0])
    np.testing.assert_array_equal(pipelined.get_weights()[0], before[0])
