import re

from lingpipe import model_registry
from lingpipe.training import placement, trainer
from params import linear_regression


def test_one_machine_finds_the_true_weights_and_says_so(tmp_path, capsys):
    experiment = linear_regression.EightWeights()
    params = model_registry.GetParams('params.linear_regression', 'Train')
    run = trainer.Trainer(params, {'Test': experiment.Test()}, tmp_path, placement.Placement(['CPU:0']))
    metrics = run.run()
    assert metrics['Test']['loss'] < 1.5 * 0.1 ** 2  # the noise, which no weights explain, has this square
    assert float(re.search(r'Largest difference ([\d.]+)\.', capsys.readouterr().out).group(1)) < 0.02
