import numpy as np
import pytest
import tensorflow as tf

from lingpipe.training import checkpoint_contents, errors, experiment


def test_evaluation_reads_weights_where_there_are_no_averages(tiny, tmp_path):
    trained, body = (experiment.build_task(tiny.params(train__random_seed=seed), tf.TensorSpec([32, 8, 8, 1])).body
                     for seed in (0, 1))
    state = {f'model/{name}': variable for name, variable in checkpoint_contents.model_variables(trained).items()}
    state['global_step'] = tf.Variable(7, dtype=tf.int64)
    path = checkpoint_contents.checkpoint_of(state).write(str(tmp_path / 'ckpt-7'))
    assert not np.array_equal(body.weights[0], trained.weights[0])
    assert checkpoint_contents.WeightReader(body).restore(path) == 7
    for variable, expected in zip(body.weights, trained.weights):
        np.testing.assert_array_equal(variable.numpy(), expected.numpy())


def test_a_path_without_a_checkpoint_is_said_to_have_none(tiny, finished):
    reader = checkpoint_contents.WeightReader(experiment.build_task(tiny.params(), tf.TensorSpec([32, 8, 8, 1])).body)
    for path in (finished.logdir / 'train/ckpt-1234', finished.logdir / 'train', 'nowhere/ckpt-1'):
        with pytest.raises(errors.TrainingError, match=f'There is no checkpoint {path}. Give the path of one'):
            reader.restore(path)
    assert reader.restore(f'{finished.logdir}/train/ckpt-8.index') == 8  # as the shell completes it
