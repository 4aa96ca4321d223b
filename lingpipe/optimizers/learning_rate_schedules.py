"""Learning-rate schedules that Keras lacks."""

import dataclasses
from typing import Any, NamedTuple

import keras
from keras import ops


class _Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal schedule."""
        return dataclasses.asdict(self)


@keras.saving.register_keras_serializable(package='lingpipe')
@dataclasses.dataclass(eq=False)
class WarmupExponentialDecay(_Schedule):
    """Linear warm-up, then exponential decay in stairs, down to a floor.

    With r = initial_learning_rate, at step t::

        t < warmup_steps:  r * t / warmup_steps
        later:             max(r * decay_rate ** floor(t / decay_steps), minimum_fraction * r)

    The released AmoebaNet (tensorflow/tpu, models/official/amoeba_net/amoeba_net_model.py) is trained with a similar
    schedule and the floor 0.0001 r.
    """

    initial_learning_rate: float
    warmup_steps: int
    decay_steps: int  # steps of a stair; the first begins at step 0
    decay_rate: float  # factor from one stair to the next
    minimum_fraction: float = 0.0  # floor, as a fraction of r

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, 'float32')
        stairs = ops.floor(step / self.decay_steps)
        decayed = ops.maximum(ops.power(float(self.decay_rate), stairs), self.minimum_fraction)
        warming = step / max(self.warmup_steps, 1)
        return self.initial_learning_rate * ops.where(step < self.warmup_steps, warming, decayed)


@keras.saving.register_keras_serializable(package='lingpipe')
@dataclasses.dataclass(eq=False)
class WarmupPolynomialDecay(_Schedule):
    """Linear warm-up, then polynomial decay, as in the training of ResNet-50 with LARS.

    With w = warmup_steps, W = floor(w) and N = max_steps, at step t::

        t < w:  initial_learning_rate * t / w
        later:  (initial_learning_rate - end_learning_rate) * (1 - (t - W) / (N - W + 1)) ** power + end_learning_rate

    This is `poly_rate_schedule` of the released ResNet-50 (tensorflow/tpu, models/official/resnet/lars_util.py).

    Raises:
        ValueError: the warm-up is longer than the training run.
    """

    initial_learning_rate: float  # the rate at the end of the warm-up
    warmup_steps: float  # may be fractional if computed from epochs
    max_steps: int  # of the whole training run
    end_learning_rate: float = 1e-4
    power: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_steps <= self.max_steps:
            raise ValueError(f'WarmupPolynomialDecay: warmup_steps={self.warmup_steps!r} must be from 0 to '
                             f'max_steps={self.max_steps!r}. Make the warm-up shorter or the training longer.')
        self._decay = keras.optimizers.schedules.PolynomialDecay(
            self.initial_learning_rate, self.max_steps - int(self.warmup_steps) + 1, self.end_learning_rate, self.power)

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, 'float32')
        warming = self.initial_learning_rate * step / max(self.warmup_steps, 1)
        return ops.where(step < self.warmup_steps, warming, self._decay(step - int(self.warmup_steps)))


@keras.saving.register_keras_serializable(package='lingpipe')
@dataclasses.dataclass(eq=False)
class WarmupPiecewiseConstantDecay(_Schedule):
    """Linear warm-up, then one drop at each boundary, as for ResNet-50 with SGD (arXiv 1706.02677, section 5.1).

    With r = initial_learning_rate, at step t::

        t < warmup_steps:  r * t / warmup_steps
        later:             r * decay_rate ** (number of boundaries that are at most t)

    Raises:
        ValueError: a boundary is inside the warm-up.
    """

    initial_learning_rate: float
    warmup_steps: int
    boundaries: list  # steps, none of them inside the warm-up
    decay_rate: float = 0.1  # at each boundary

    def __post_init__(self) -> None:
        self.boundaries = list(self.boundaries)
        if any(boundary < self.warmup_steps for boundary in self.boundaries):
            raise ValueError(f'WarmupPiecewiseConstantDecay: boundaries={self.boundaries!r} must not begin before the '
                             f'end of the warm-up, warmup_steps={self.warmup_steps!r}. Move them behind it, or make it '
                             'shorter.')

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, 'float32')
        num_falls = sum((ops.cast(step >= boundary, 'float32') for boundary in self.boundaries), ops.zeros([]))
        warming = step / max(self.warmup_steps, 1)
        factor = ops.where(step < self.warmup_steps, warming, ops.power(float(self.decay_rate), num_falls))
        return self.initial_learning_rate * factor


class LarsRate(NamedTuple):
    """Learning rate and warm-up of ResNet-50 on ImageNet with LARS."""

    learning_rate: float  # at the end of the warm-up
    warmup_epochs: int


# The released ResNet-50 (tensorflow/tpu, models/official/resnet/lars_util.py): batch sizes below each limit.
_LARS_RATES = {16_384: LarsRate(10.0, 5), 32_768: LarsRate(25.0, 5), 65_536: LarsRate(32.0, 14)}
_LARGEST_LARS_RATE = LarsRate(35.6, 40)


def linearly_scaled(learning_rate: float, batch_size: int, base_batch_size: int = 256) -> float:
    """Scale a rate from the global batch size `base_batch_size` to `batch_size` (arXiv 1706.02677, section 2.1)."""
    return learning_rate * batch_size / base_batch_size


def resnet50_lars_rate(batch_size: int) -> LarsRate:
    """Return the `LarsRate` for ResNet-50 and a global batch size."""
    return next((rate for limit, rate in _LARS_RATES.items() if batch_size < limit), _LARGEST_LARS_RATE)
