import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe import layers
from lingpipe.models import linear_regression


@pytest.fixture(name='task')
def task_fixture():
    p = linear_regression.LinearRegression.Params().Set(name='task')
    p.body.layers = [layers.KerasParams(keras.layers.Dense, units=2)]
    return p.Instantiate()


def test_the_loss_is_the_mean_squared_error_of_examples_that_count(task):
    targets, outputs = tf.constant([[1.0, 2.0], [3.0, 4.0],
                                    [5.0, 6.0]]), tf.constant([[1.0, 1.0], [0.0, 4.0], [9.0, 9.0]])
    loss, weight = task.loss((targets, tf.constant([1.0, 1.0, 0.0])), outputs)['loss']
    assert (float(loss), float(weight)) == ((1 / 2 + 9 / 2) / 2, 2.0)


def test_the_report_sets_every_weight_beside_the_true_one(task):
    task.body.build((None, 2))
    values = dict(zip(map(id, task.body.weights), (np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([5.0, 6.5]))))
    truth = types.SimpleNamespace(true_weights=np.array([[1.0, 2.0], [3.0, 4.0]]), true_bias=np.array([5.0, 6.0]))
    lines = task.report(truth, lambda variable: values[id(variable)]).splitlines()
    assert [line.split() for line in lines[3:7:3]] == [
        ['weight', '2', '3.0000', '3.0000'], ['bias', '1', '6.5000', '6.0000']]
    assert lines[-1] == 'Largest difference 0.5000.'
    task.body.stack.append(None)
    assert task.report(truth, None) is None
