"""The image models of KerasHub: trained on digits, measured as plain Keras measures them, and loaded by plain KerasHub."""

import numpy as np
import pytest
import tensorflow as tf

from lingpipe import model_registry
from lingpipe.training import trainer
from tests import needs

pytestmark = needs.keras_hub
TINY = {'DigitsResNet': {'stackwise_num_filters': [64], 'stackwise_num_blocks': [1], 'stackwise_num_strides': [1]},
        'DigitsViT': {'num_layers': 1, 'hidden_dim': 8, 'mlp_dim': 8}}


def tiny_params(name):
    params = model_registry.GetParams(f'params.keras_hub_images.{name}', 'Train')
    params.input.Set(batch_size=16, image_size=16, split='test[:64]')
    model = params.task.body.model
    model.backbone_arguments = {**model.backbone_arguments, **TINY[name], 'image_shape': (16, 16, 1)}
    params.task.body.num_micro_batches = 2
    params.train.max_steps = 2
    return params


@pytest.mark.parametrize('name', TINY)
def test_digits_are_classified_as_by_plain_kerashub(tmp_path, name):
    import keras_hub
    params = tiny_params(name)
    run = trainer.Trainer(params, {'Test': params.input.Copy().Set(split='test[:40]')}, str(tmp_path))
    metrics, model = run.run()['Test'], run._task.body.model
    assert len({stage.device for row in run._task.body.grid.replicas for stage in row}) == 2
    preset, = params.task.body.model.Instantiate().export(model, str(tmp_path), None)
    plain = keras_hub.models.ImageClassifier.from_preset(preset)
    images, labels, weights = map(np.concatenate, zip(*run._evaluation_inputs['Test'].evaluation_dataset()))
    logits = plain.predict(images, batch_size=16, verbose=0)
    nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    np.testing.assert_allclose(metrics['loss'], np.average(nats, weights=weights), rtol=1e-4)
    np.testing.assert_allclose(metrics['accuracy'], np.average(logits.argmax(-1) == labels, weights=weights), atol=1e-6)
