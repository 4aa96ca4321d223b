import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf

from lingpipe.input import image_augmentation
from lingpipe.layers import amoebanet
from lingpipe.training import inference

LOAD_WITHOUT_LINGPIPE = '''
import sys
sys.modules['lingpipe'] = None
import keras, numpy
model = keras.saving.load_model(sys.argv[1])
numpy.save(sys.argv[2], model.predict(numpy.load(sys.argv[3]), verbose=0))
'''


def images(shape=(3, 8, 8, 1)):
    return np.random.default_rng(0).normal(size=shape).astype('float32')


def test_exports_load_without_lingpipe_and_have_averaged_weights(finished, copied, tiny, tmp_path, capsys):
    """All layers of this model are Keras's own; it takes plain pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), np.uint8)
    keras_path, saved_model_path, classes_path = inference.Exporter(tiny.params(), str(copied)).run()
    printed = capsys.readouterr().out
    assert 'step 12: ' in printed and printed.endswith('; both models take pixels from 0 to 255\n')
    assert json.loads(pathlib.Path(classes_path).read_text('utf-8')) == list('0123456789')
    np.save(tmp_path / 'x.npy', pixels)
    subprocess.run(
        [sys.executable, '-c', LOAD_WITHOUT_LINGPIPE, keras_path, tmp_path / 'y.npy', tmp_path / 'x.npy'], check=True)
    program = finished.trainer._program
    body = finished.trainer._task.body
    trained = [variable.numpy() for variable in body.weights]
    for variable in body.weights:
        variable.assign(program.read(variable))
    expected = body(image_augmentation.normalize(tf.constant(pixels), 'digits'))
    for variable, value in zip(body.weights, trained):
        variable.assign(value)
    np.testing.assert_allclose(np.load(tmp_path / 'y.npy'), expected, rtol=1e-5, atol=1e-6)
    served = tf.saved_model.load(saved_model_path)
    np.testing.assert_allclose(served.serve(pixels.astype('float32')), expected, rtol=1e-5, atol=1e-6)


def test_amoebanet_with_its_two_tensors_between_layers_is_one_keras_model(tiny, tmp_path):
    *stem, head = amoebanet.amoebanet_layers('D', 3, 8, num_classes=10, use_auxiliary_head=False)
    layers = [*stem[:2], head]
    params = tiny.params(task__body__layers=layers, task__name='vision/small', train__max_steps=1, input__image_size=16)
    tiny.only_train(tmp_path, task__body__layers=layers, train__max_steps=1, input__image_size=16)
    keras_path, *_ = inference.Exporter(params, str(tmp_path)).run()
    loaded = keras.saving.load_model(keras_path)
    assert loaded.name == 'vision_small_of_plain_data' and loaded(images((2, 16, 16, 1))).shape == (2, 10)


def test_a_command_with_another_model_than_the_run_says_so(copied, tiny, caplog):
    inference.Exporter(tiny.params(task__body__num_partitions=1, train__max_steps=5), str(copied))
    assert 'another model' not in caplog.text
    inference.Exporter(tiny.params(**{'task__body__layers[1]__activation': 'tanh'}), str(copied))
    assert "another model than the training run in" in caplog.text
