import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.models import base_task
from lingpipe.training import train_program
from tests.closeness import assert_close

layers = keras.layers


class Regression(base_task.BaseTask):
    """Mean squared error, weighted by example."""

    def loss(self, targets, outputs):
        values, weights = targets
        errors = tf.reduce_mean(tf.square(outputs - values), -1)
        total = tf.reduce_sum(weights)
        return {'loss': (tf.reduce_sum(errors * weights) / total, total),
                'largest_output': (tf.reduce_max(outputs), tf.constant(1.0))}


def dense(units):
    return KerasParams(layers.Dense, units=units, bias_initializer='ones')


def make_program(stack=None, num_partitions=2, num_micro_batches=2, width=3, dtype_policy=None, **train):
    keras.utils.set_random_seed(0)
    p = Regression.Params().Set(name='regression', train=base_task.train_params().Set(**train))
    if p.train.lr_schedule is None:
        p.train.learning_rate = 0.1
    p.dtype_policy = dtype_policy
    p.body.Set(layers=stack or [dense(4), dense(2)], num_partitions=num_partitions, num_micro_batches=num_micro_batches,
               random_seed=1)
    task = p.Instantiate()
    task.body.build((None, width))
    return task, train_program.TrainProgram(task, p.train)


def examples(num_batches=3, num_rows=4, width=3):
    random = np.random.default_rng(0)
    shapes = [(num_rows, width), (num_rows, 2)]
    return [(*(random.normal(size=shape).astype('float32') for shape in shapes),
             random.uniform(0.5, 2.0, num_rows).astype('float32')) for _ in range(num_batches)]


def iterate(batches, generator=None):
    dataset = tf.data.Dataset.from_generator(generator or (lambda: iter(batches)), output_signature=tuple(
        tf.TensorSpec(array.shape, array.dtype) for array in batches[0]))
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # so that a batch is made when its step asks for it
    return iter(dataset.with_options(options))


def values(variables):
    return [variable.numpy() for variable in variables]


class ByHand:
    """Two dense layers without activation, and the gradients of their weighted squared error, worked out on paper."""

    def __init__(self, weights):
        self.weights = [np.asarray(weight, np.float64) for weight in weights]

    def loss_and_gradients(self, x, y, example_weights):
        first, first_bias, second, second_bias = self.weights
        hidden = x @ first + first_bias
        errors = hidden @ second + second_bias - y
        share = (example_weights / example_weights.sum())[:, None]
        upstream = 2 * errors * share / y.shape[1]
        below = upstream @ second.T
        return np.sum(errors**2 * share) / y.shape[1], [x.T @ below, below.sum(0), hidden.T @ upstream, upstream.sum(0)]


def norm_of(gradients):
    return np.sqrt(sum(np.sum(gradient**2) for gradient in gradients))


@pytest.mark.parametrize('num_partitions, num_micro_batches', [(1, 1), (2, 2), (2, 4)])
def test_steps_are_those_of_gradient_descent(num_partitions, num_micro_batches):
    task, program = make_program(num_partitions=num_partitions, num_micro_batches=num_micro_batches)
    by_hand, batches = ByHand(values(task.body.trainable_variables)), examples()
    result = program.run(iterate(batches), 3)
    losses = []
    for batch in batches:
        loss, gradients = by_hand.loss_and_gradients(*batch)
        losses.append(loss)
        by_hand.weights = [weight - 0.1 * gradient for weight, gradient in zip(by_hand.weights, gradients)]
    assert_close(values(task.body.trainable_variables), by_hand.weights)
    assert_close([result.metrics['loss'], result.gradient_norm], [np.array(losses), norm_of(gradients)])
    assert result.metrics['largest_output'].shape == [3]
    assert program.global_step.numpy() == 3


def test_a_call_asked_to_stop_finishes_its_step_and_counts_steps():
    (task, program), (other_task, other) = make_program(), make_program()
    batches = examples(9)

    def stop_at_third():
        for index, batch in enumerate(batches):
            if index == 2:
                program.stopping.assign(True)
            yield batch

    iterator = iterate(batches, stop_at_third)
    result, expected = program.run(iterator, 6), other.run(iterate(batches), 3)
    assert result.num_steps == 3 == program.global_step.numpy()
    assert_close([result.gradient_norm, *result.metrics.values()], [expected.gradient_norm, *expected.metrics.values()])
    assert_close(values(task.body.weights), values(other_task.body.weights))

    assert program.run(iterator, 5).num_steps == 1  # at least one, however early the order came
    program.stopping.assign(False)
    assert program.run(iterator, 5).num_steps == 5


@pytest.mark.parametrize('limit', [0.05, 1e6])
def test_clipping_scales_all_gradients_by_their_common_norm(limit):
    task, program = make_program(clip_gradient_norm_to_value=limit)
    by_hand, (batch,) = ByHand(values(task.body.trainable_variables)), examples(1)
    _, gradients = by_hand.loss_and_gradients(*batch)
    norm = norm_of(gradients)
    result = program.run(iterate([batch]), 1)
    scale = min(1.0, limit / norm)
    assert_close([result.gradient_norm], [norm])
    assert_close(values(task.body.trainable_variables), [
        weight - 0.1 * scale * gradient for weight, gradient in zip(by_hand.weights, gradients)])


def test_l2_is_of_kernels_and_refused_for_layers_with_regularizers():
    own = KerasParams(layers.Dense, units=4, kernel_regularizer=KerasParams(keras.regularizers.L1, l1=0.05))
    with pytest.raises(ValueError, match='^train.l2_regularizer_weight=0.6 is not possible: .*kernel has a regularizer'):
        make_program([own, dense(2)], l2_regularizer_weight=0.6)
    first = KerasParams(layers.Dense, units=4, bias_initializer='ones')
    task, program = make_program([first, dense(2)], l2_regularizer_weight=0.6)
    by_hand, (batch,) = ByHand(values(task.body.trainable_variables)), examples(1)
    loss, gradients = by_hand.loss_and_gradients(*batch)
    kernels = [weight.ndim == 2 for weight in by_hand.weights]
    result = program.run(iterate([batch]), 1)
    penalty = 0.3 * sum(np.sum(weight**2) for weight, is_kernel in zip(by_hand.weights, kernels) if is_kernel)
    assert_close([*result.metrics['loss']], [loss + penalty])
    assert_close(values(task.body.trainable_variables), [
        weight - 0.1 * (gradient + 0.6 * is_kernel * weight)
        for weight, gradient, is_kernel in zip(by_hand.weights, gradients, kernels)])


def with_norm_and_drop_out():
    return [dense(6), KerasParams(layers.BatchNormalization, momentum=0.9), KerasParams(
        layers.Activation, activation='tanh'),
            KerasParams(layers.Dropout, rate=0.3), dense(2)]


def training_settings():
    decaying = KerasParams(
        keras.optimizers.schedules.ExponentialDecay, initial_learning_rate=0.2, decay_steps=2, decay_rate=0.5)
    return {'optimizer': KerasParams(keras.optimizers.SGD, momentum=0.9), 'clip_gradient_norm_to_value': 0.5,
            'l2_regularizer_weight': 0.01, 'ema_decay': 0.99, 'lr_schedule': decaying}


def test_the_moving_average_of_weights_and_statistics_follows_each_step():
    task, program = make_program(with_norm_and_drop_out(), ema_decay=0.3)
    expected, iterator = [value.astype(np.float64)
                          for value in values(program.named_variables.values())], iterate(examples(6))
    for step in range(6):
        program.run(iterator, 1)
        decay = min(0.3, (1 + step) / (10 + step))
        expected = [decay * average + (1 - decay) * value
                    for average, value in zip(expected, values(program.named_variables.values()))]
    assert list(program.average.averages) == list(program.named_variables)
    assert_close(values(program.average.averages.values()), expected)
    moving_mean = task.body.stack[1].moving_mean
    assert_close([program.read(moving_mean)], [program.average.averages['batch_normalization_1/002_moving_mean']])


@pytest.mark.parametrize('spoiled', ['input', 'loss_only'])
def test_a_step_that_is_not_finite_stops_and_changes_nothing(spoiled):
    _, program = make_program(with_norm_and_drop_out(), **training_settings())
    batches = examples(3)
    x, y, weights = batches[1]
    batches[1] = (np.full_like(x, np.nan), y, weights) if spoiled == 'input' else (x, y + np.float32(3e38), weights)
    everything = [*program.named_variables.values(), *program.optimizer.variables, *program.average.averages.values(),
                  program.global_step]
    program.run(iterate(batches), 1)
    before = values(everything)
    iterator = iterate(batches[1:])
    with pytest.raises(tf.errors.InvalidArgumentError, match=train_program.NON_FINITE):
        program.run(iterator, 2)
    for value, expected in zip(values(everything), before):
        np.testing.assert_array_equal(value, expected)
    program.run(iterator, 1)
    assert program.global_step.numpy() == 2
    assert all(np.all(np.isfinite(value)) for value in values(everything))


def float16_program(x_scale=1.0, **train):
    batches = [(x * np.float32(x_scale), y, weights) for x, y, weights in examples(num_batches=8)]
    task, program = make_program(ema_decay=0.9, dtype_policy='mixed_float16', **train)
    return task, program, batches


def test_float16_trains_with_a_scaled_loss_as_float32_does_without():
    task, program, batches = float16_program()
    program.optimizer.dynamic_scale.assign(256.0)
    result = program.run(iterate(batches), 3)
    full, full_program = make_program(ema_decay=0.9)
    full_program.run(iterate(batches), 3)
    assert {layer.compute_dtype for layer in task.body.stack} == {'float16'}
    assert_close(values(task.body.weights), values(full.body.weights), tolerance=2e-2)
    assert list(result.metrics['loss_scale'].numpy()) == [256.0] * 3
    assert int(program.optimizer.step_counter.numpy()) == 3


def test_a_step_that_overflows_in_float16_changes_nothing_but_the_scale():
    task, program, batches = float16_program(x_scale=20.0)
    program.run(iterate(batches), 1)
    before = values(task.body.weights), [average.numpy() for average in program.average.averages.values()]
    scale = float(program.optimizer.dynamic_scale.numpy())
    program.optimizer.dynamic_scale.assign(2.0 ** 20)
    program.run(iterate(batches), 1)
    after = values(task.body.weights), [average.numpy() for average in program.average.averages.values()]
    tf.nest.map_structure(np.testing.assert_array_equal, before, after)
    assert scale < 2.0 ** 20 and float(program.optimizer.dynamic_scale.numpy()) == 2.0 ** 19
    assert int(program.global_step.numpy()) == 2


def test_what_no_scale_makes_finite_stops_the_training():
    _, program, batches = float16_program(x_scale=np.nan)
    program.optimizer.dynamic_scale.assign(4.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=train_program.NON_FINITE):
        program.run(iterate(batches), 8)
    assert int(program.global_step.numpy()) == 2


@pytest.mark.parametrize('dtype_policy', [None, 'mixed_float16'])
def test_weights_that_no_loss_reaches_stay_as_they_are(dtype_policy, monkeypatch):
    task, program = make_program(
        dtype_policy=dtype_policy, optimizer=KerasParams(keras.optimizers.AdamW, weight_decay=0.5),
        clip_gradient_norm_to_value=0.1)
    value_and_grad, before = task.body.value_and_grad, values(task.body.trainable_variables)

    def all_but_the_first(*args, **kwargs):
        out = value_and_grad(*args, **kwargs)
        return out._replace(gradients=[None, *out.gradients[1:]])

    monkeypatch.setattr(task.body, 'value_and_grad', all_but_the_first)
    with pytest.warns(UserWarning, match='Gradients do not exist for variables'):
        program.run(iterate(examples()), 3)
    changed = [not np.array_equal(*pair) for pair in zip(values(task.body.trainable_variables), before)]
    assert changed == [False, True, True, True]
