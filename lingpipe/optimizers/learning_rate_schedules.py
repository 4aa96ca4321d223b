"""Learning-rate schedules that Keras lacks."""

import keras
from keras import ops


class WarmupExponentialDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then a staircase of exponential decay with a floor, as the released AmoebaNet trains.

    With r = initial_learning_rate, at step t::

        t < warmup_steps:  r * t / warmup_steps
        later:             max(r * decay_rate ** floor(t / decay_steps), minimum_fraction * r)

    Args:
        initial_learning_rate: r.
        warmup_steps: number of steps of the warm-up.
        decay_steps: number of steps of a stair, counted from step 0.
        decay_rate: factor from one stair to the next.
        minimum_fraction: floor, as a fraction of r.
    """

    def __init__(self, initial_learning_rate, warmup_steps, decay_steps, decay_rate, minimum_fraction=0.0):
        self.initial_learning_rate = initial_learning_rate
        self.warmup_steps = warmup_steps
        self.decay_steps = decay_steps
        self.decay_rate = decay_rate
        self.minimum_fraction = minimum_fraction

    def __call__(self, step):
        step = ops.cast(step, 'float32')
        stairs = ops.floor(step / self.decay_steps)
        decayed = ops.maximum(ops.power(float(self.decay_rate), stairs), self.minimum_fraction)
        warming = step / max(self.warmup_steps, 1)
        return self.initial_learning_rate * ops.where(step < self.warmup_steps, warming, decayed)

    def get_config(self):
        return {name: getattr(self, name) for name in (
            'initial_learning_rate', 'warmup_steps', 'decay_steps', 'decay_rate', 'minimum_fraction')}
