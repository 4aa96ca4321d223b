import types

import keras
import numpy as np
import pytest

from lingpipe.training import checkpoint_contents


@pytest.mark.parametrize('name', [
    'block1.dense', '.', 'a..b', 'a.Sb', 'a b', 'a:0', 'ü', 'ATTRIBUTES', 'a.OPTIMIZER_SLOT', 'VARIABLE_VALUE', 'save_counter',
    '_CHECKPOINTABLE_OBJECT_GRAPH', 'model'])
def test_a_checkpoint_of_a_layer_of_any_name_is_read_again(tmp_path, name):
    layer = keras.layers.Dense(2, name=name)
    layer.build([None, 3])
    body = types.SimpleNamespace(model=None, stack=[layer])
    state = {f'model/{name}': variable for name, variable in checkpoint_contents.model_variables(body).items()}
    path = checkpoint_contents.checkpoint_of(state).write(str(tmp_path / 'ckpt-1'))
    kernel = layer.kernel.numpy()
    layer.kernel.assign(kernel + 1)
    checkpoint_contents.require_match(path, state)
    checkpoint_contents.read_state(path, state)
    np.testing.assert_array_equal(layer.kernel.numpy(), kernel)
