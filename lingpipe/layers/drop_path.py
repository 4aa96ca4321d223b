"""Drop path: the regulariser that switches off whole branches of a network, example by example."""

import keras

from lingpipe.layers import base_layer


class DropPath(base_layer.BaseLayer):
    """Drops a whole path of a branching network for some examples, so that the other paths learn to do without it.

    Each example of the batch is kept with probability `keep_prob` and then divided by it, which leaves the expected
    value unchanged; the others become zero (FractalNet, arXiv 1605.07648, 'Regularization via drop-path'). It does
    nothing outside of training.
    """

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define('final_keep_prob', 0.7, 'Probability, in (0, 1], of keeping a path once the schedule has ended.')
        p.Define('num_training_steps', None,
                 'Steps T over which keep_prob falls from 1 to final_keep_prob; None or 0: it is constant.')
        return p

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        if not 0 < params.final_keep_prob <= 1:
            raise ValueError(f'DropPath.final_keep_prob is {params.final_keep_prob}, which is not in (0, 1]; '
                             'set it to 1 to keep every path.')

    def build(self, input_shape):
        if self.params.final_keep_prob < 1:
            self.seed_generator = keras.random.SeedGenerator(name='seed_generator')

    def call(self, inputs, training=None):
        """Drops `inputs`, `[batch, ...]`, for some examples."""
        if not self.is_active(training):
            return inputs
        return inputs * self.draw_scales(inputs, num_paths=1)[0]

    def compute_output_shape(self, input_shape):
        return input_shape

    def is_active(self, training):
        """Returns whether paths are dropped at all, given the `training` argument of a call."""
        return bool(training) and self.params.final_keep_prob < 1

    def keep_prob(self):
        """Returns the probability of keeping a path at the current training step.

        keep(t) = 1 - min(1, t / T) (1 - final), the 'ScheduledDropPath' of NASNet (arXiv 1707.07012, appendix A.5).

        Returns:
            A float, or a scalar float32 tensor where the schedule needs the step; the final value where no step is
            known (see `base_layer.training_step`).
        """
        final, num_steps = self.params.final_keep_prob, self.params.num_training_steps
        step = base_layer.current_training_step()
        if not num_steps or step is None:
            return final
        return 1.0 - keras.ops.minimum(1.0, keras.ops.cast(step, 'float32') / num_steps) * (1.0 - final)

    def draw_scales(self, inputs, num_paths):
        """Draws the factors of several independent paths at once, which keeps the graph of a cell small.

        Args:
            inputs: `[batch, ...]`, a tensor of the batch size, rank and dtype of the paths.
            num_paths: number of paths.

        Returns:
            A list of `num_paths` tensors `[batch, 1, ...]` to multiply the paths by: 0 or 1 / keep_prob.
        """
        keep_prob = self.keep_prob()
        shape = (num_paths, keras.ops.shape(inputs)[0]) + (1,) * (len(inputs.shape) - 1)
        kept = keras.random.uniform(shape, dtype='float32', seed=self.seed_generator) < keep_prob
        scales = keras.ops.cast(keras.ops.cast(kept, 'float32') / keep_prob, inputs.dtype)
        return keras.ops.unstack(scales, num_paths)
