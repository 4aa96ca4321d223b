import numpy as np

from lingpipe import model_registry
from lingpipe.training import experiment, trainer
from params import linear_regression


def test_one_machine_finds_the_true_weights(tmp_path):
    chosen = linear_regression.EightWeights()
    params = model_registry.GetParams('params.linear_regression', 'Train')
    run = trainer.Trainer(params, {'Test': chosen.Test()}, tmp_path, experiment.Placement(['CPU:0']))
    metrics = run.run()
    assert metrics['Test']['loss'] < 1.5 * 0.1 ** 2  # the noise, which no weights explain, has this square
    np.testing.assert_allclose(run._task.body.stack[0].kernel, run._input.true_weights, atol=0.02)
