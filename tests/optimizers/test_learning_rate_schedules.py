import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import keras_params
from lingpipe.optimizers import learning_rate_schedules


def make(**arguments):
    defaults = {'initial_learning_rate': 0.2, 'warmup_steps': 4, 'decay_steps': 10, 'decay_rate': 0.5}
    return learning_rate_schedules.WarmupExponentialDecay(**{**defaults, **arguments})


@pytest.mark.parametrize('step, rate', [
    (0, 0.0), (1, 0.05), (2, 0.1), (3, 0.15),  # a quarter of 0.2 more at each step
    (4, 0.2), (9, 0.2),  # full
    (10, 0.1), (19, 0.1), (20, 0.05), (29, 0.05), (30, 0.025)])  # a half at each stair, counted from step 0
def test_the_rate_by_hand(step, rate):
    assert float(make()(step)) == pytest.approx(rate)


def test_the_rate_does_not_fall_below_the_floor():
    schedule = make(minimum_fraction=0.2)
    assert [float(schedule(step)) for step in (20, 30, 10_000_000)] == pytest.approx([0.05, 0.04, 0.04])


def test_late_stairs_of_a_long_training_run_are_exact():
    # Steps of ImageNet at batch 128: 100 epochs, a stair every 2.4; 41 * 24022 is the first step of the last stair.
    schedule = make(warmup_steps=30027, decay_steps=24022, decay_rate=0.97)
    before, first = (float(schedule(tf.constant(41 * 24022 + offset, tf.int64))) for offset in (-1, 0))
    np.testing.assert_allclose([before, first], [0.2 * 0.97**40, 0.2 * 0.97**41], rtol=1e-5)


# ResNet-50 on ImageNet with batch 32,768: rate 32, 14 epochs of warm-up, 3,558 steps.
@pytest.mark.parametrize('step, rate', [
    (100, 5.8461), (547, 31.9782), (548, 31.9788), (1000, 23.0984), (2000, 8.5731), (3000, 1.1023), (3557, 0.0001)])
def test_the_polynomial_rate_has_the_published_values(step, rate):
    schedule = learning_rate_schedules.WarmupPolynomialDecay(32.0, 14 * 1_281_167 / 32_768, 3558)
    assert float(schedule(tf.constant(step, tf.int64))) == pytest.approx(rate, abs=5e-5)


def test_after_the_warm_up_it_is_the_polynomial_of_keras():
    schedule = learning_rate_schedules.WarmupPolynomialDecay(1.0, 10, 109, end_learning_rate=0.5, power=3.0)
    stock = keras.optimizers.schedules.PolynomialDecay(1.0, 100, 0.5, power=3.0)
    assert [float(schedule(10 + step)) for step in (0, 1, 50, 100, 500)] == pytest.approx(
        [float(stock(step)) for step in (0, 1, 50, 100, 500)])
    assert [float(schedule(step)) for step in (0, 5)] == pytest.approx([0.0, 0.5])


# Base rate 0.4 for batch 1,024; 5 epochs of warm-up, a tenth from epochs 30, 60 and 80 on; here an epoch has 10 steps.
@pytest.mark.parametrize('epoch, rate', [
    (0, 0.0), (2.5, 0.2), (5, 0.4), (29.9, 0.4), (30, 0.04), (59.9, 0.04), (60, 0.004), (79.9, 0.004), (80, 0.0004),
    (89, 0.0004)])
def test_the_piecewise_rate_by_hand(epoch, rate):
    schedule = learning_rate_schedules.WarmupPiecewiseConstantDecay(0.4, 50, [300, 600, 800])
    assert float(schedule(round(10 * epoch))) == pytest.approx(rate)


@pytest.mark.parametrize('schedule', [
    learning_rate_schedules.WarmupExponentialDecay(0.2, 4, 10, 0.5),
    learning_rate_schedules.WarmupPolynomialDecay(32.0, 3.5, 20),
    learning_rate_schedules.WarmupPiecewiseConstantDecay(0.4, 5, [10, 20], 0.2)],
    ids=lambda schedule: type(schedule).__name__)
def test_a_file_and_a_text_can_hold_each(schedule):
    copy = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    from_params = keras_params.KerasParams(type(schedule), **schedule.get_config()).Instantiate()
    for other in (copy, from_params):
        assert other.get_config() == schedule.get_config()
        assert float(other(12)) == float(schedule(12))


@pytest.mark.parametrize('make, message', [
    (lambda: learning_rate_schedules.WarmupPolynomialDecay(1.0, 11, 10),
        'warmup_steps=11 must be from 0 to max_steps=10'),
    (lambda: learning_rate_schedules.WarmupPiecewiseConstantDecay(1.0, 11, [20, 10]),
     r'boundaries=\[20, 10\] must not begin before the end of the warm-up, warmup_steps=11')])
def test_a_warm_up_that_is_too_long_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_rate_grows_with_the_batch():
    assert [learning_rate_schedules.linearly_scaled(0.1, batch)
            for batch in (128, 256, 1024, 8192)] == pytest.approx([0.05, 0.1, 0.4, 3.2])
    assert learning_rate_schedules.linearly_scaled(0.2, 96, base_batch_size=32) == pytest.approx(0.6)
