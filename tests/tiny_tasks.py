"""Models as small as they get, with everything that training can be asked to do."""

import keras
import numpy as np
import tensorflow as tf

from lingpipe.layers import amoebanet, keras_params, transformer
from lingpipe.models import image_classifier, language_model


def amoebanet_task(dropout_rate=0.0):
    """Return the params of AmoebaNet-D(2, 8) up to its first two cells, and images `[8, 16, 16, 1]` with labels and
    weights `[8]`."""
    p = image_classifier.ImageClassifier.Params().Set(name='tiny_amoebanet', label_smoothing=0.1)
    *units, head = amoebanet.amoebanet_layers(
        'D', num_cells=2, reduction_size=8, num_classes=10, use_auxiliary_head=False, dropout_rate=dropout_rate,
        drop_path_final_keep_prob=1.0 - dropout_rate, batch_norm_momentum=0.9)
    p.body.layers = [*units[:3], head]  # the stem, and two cells that halve the image
    random = np.random.default_rng(0)
    batch = random.normal(size=(8, 16, 16, 1)), random.integers(0, 10, 8), np.ones(8)
    return configured(p), _tensors(batch)


def convolution_task(dropout_rate=0.0):
    """Return the params of a convolution with batch norm, and a batch of images as that of `amoebanet_task`."""
    p, batch = amoebanet_task()
    layers = keras.layers
    p.body.layers = [keras_params.KerasParams(cls, **fields) for cls, fields in (
        (layers.Conv2D, {'filters': 4, 'kernel_size': 3, 'strides': 2}), (layers.BatchNormalization, {'momentum': 0.9}),
        (layers.GlobalAveragePooling2D, {}), (layers.Dropout, {'rate': dropout_rate}), (layers.Dense, {'units': 10}))]
    return p, batch


def transformer_task(dropout_rate=0.0):
    """Return the params of a layer of Transformer with a tied head, and a batch of tokens `[8, 6]` with its
    targets."""
    p = language_model.LanguageModel.Params().Set(name='tiny_transformer', sample_length=0)
    p.body.layers = transformer.transformer_lm_layers(
        num_layers=1, vocab_size=16, model_dim=8, hidden_dim=16, num_heads=2, residual_dropout_prob=dropout_rate,
        is_tied=True)
    random = np.random.default_rng(0)
    tokens = random.integers(0, 16, (8, 7))
    return configured(p), _tensors((tokens[:, :-1], tokens[:, 1:], np.ones((8, 6)), np.ones((8, 6))))


TASKS = {'amoebanet': amoebanet_task, 'convolution': convolution_task, 'transformer': transformer_task}


def configured(p):
    """Set what a training of two partitions on CPU devices can be asked to do."""
    p.body.Set(name='body', num_partitions=2, num_micro_batches=2, devices=['CPU:1', 'CPU:2'], random_seed=1)
    p.train.Set(
        learning_rate=0.01, clip_gradient_norm_to_value=1.0, ema_decay=0.9, l2_regularizer_weight=1e-3,
        optimizer=keras_params.KerasParams(keras.optimizers.SGD, momentum=0.9, weight_decay=0.1))
    return p


def _tensors(arrays):
    return tuple(tf.constant(array, tf.int32 if array.dtype.kind == 'i' else tf.float32) for array in arrays)
