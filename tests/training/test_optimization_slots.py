import keras
import pytest

from lingpipe.layers.keras_params import KerasParams
from lingpipe.models import base_task
from lingpipe.training import optimization


@pytest.mark.parametrize('optimizer, ema_decay, num_slots', [
    (None, 0.0, 0),
    (KerasParams(keras.optimizers.SGD, momentum=0.9), 0.0, 1),
    (KerasParams(keras.optimizers.RMSprop), 0.0, 1),
    (KerasParams(keras.optimizers.RMSprop, momentum=0.9, centered=True), 0.0, 3),
    (KerasParams(keras.optimizers.Adam), 0.0, 2),
    (KerasParams(keras.optimizers.Adam), 0.99, 3)])
def test_tensors_of_the_size_of_a_weight_are_counted(optimizer, ema_decay, num_slots):
    p = base_task.train_params().Set(optimizer=optimizer, ema_decay=ema_decay)
    assert optimization.num_slots(p) == num_slots
