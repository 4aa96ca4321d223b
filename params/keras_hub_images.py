"""Image models of KerasHub on the handwritten digits of scikit-learn, which need no network."""

import keras

from lingpipe import base_model_params, model_registry
from lingpipe.input import image_input
from lingpipe.keras_graph import hub_model
from lingpipe.layers import keras_params
from lingpipe.models import image_classifier


class _Digits(base_model_params.SingleTaskModelParams):
    """A classifier of the 1,797 digits, in images of 32 pixels."""

    BACKBONE = None
    BACKBONE_ARGUMENTS = {}
    IMAGE_SIZE = 32
    NUM_PARTITIONS = 2
    NUM_REPLICAS = 1
    NUM_MICRO_BATCHES = 4
    BATCH_SIZE = 64
    EPOCHS = 30
    LEARNING_RATE = 1e-3

    def _Input(self, split, augmentation):
        return image_input.ImageInput.Params().Set(
            name=f'digits_{split}', dataset='digits', split=split, batch_size=self.BATCH_SIZE,
            image_size=self.IMAGE_SIZE, augmentation=augmentation)

    def Train(self):
        return self._Input('train', 'digits')

    def Test(self):
        return self._Input('test', 'digits').Set(batch_size=180)

    def Task(self):
        p = image_classifier.ImageClassifier.Params().Set(name=f'digits_{self.BACKBONE}')
        p.body.Set(num_partitions=self.NUM_PARTITIONS, num_replicas=self.NUM_REPLICAS,
                   num_micro_batches=self.NUM_MICRO_BATCHES, recompute='none')
        p.body.model = hub_model.KerasHubModel.Params().Set(
            backbone=self.BACKBONE, head='image_classifier', head_arguments={'num_classes': 10},
            backbone_arguments={'image_shape': (self.IMAGE_SIZE, self.IMAGE_SIZE, 1), **self.BACKBONE_ARGUMENTS})
        steps_per_epoch = 1437 / self.BATCH_SIZE
        p.train.Set(
            max_steps=round(self.EPOCHS * steps_per_epoch), clip_gradient_norm_to_value=1.0,
            optimizer=keras_params.KerasParams(keras.optimizers.AdamW, weight_decay=0.05),
            lr_schedule=keras_params.KerasParams(
                keras.optimizers.schedules.CosineDecay, initial_learning_rate=0.0, warmup_target=self.LEARNING_RATE,
                warmup_steps=round(2 * steps_per_epoch), decay_steps=round((self.EPOCHS - 2) * steps_per_epoch)),
            save_interval_seconds=60.0, summary_interval_steps=20)
        return p


@model_registry.RegisterSingleTaskModel
class DigitsResNet(_Digits):
    """A ResNet of KerasHub with six basic blocks on the handwritten digits."""

    BACKBONE = 'ResNetBackbone'
    BACKBONE_ARGUMENTS = {
        'input_conv_filters': [64], 'input_conv_kernel_sizes': [3], 'stackwise_num_filters': [64, 96, 128],
        'stackwise_num_blocks': [2, 2, 2], 'stackwise_num_strides': [1, 2, 2], 'block_type': 'basic_block'}


@model_registry.RegisterSingleTaskModel
class DigitsViT(_Digits):
    """A Vision Transformer of KerasHub on the handwritten digits, in 16 patches.

    KerasHub puts all blocks into one layer, which cannot be cut into partitions, so there are two replicas.
    """

    NUM_PARTITIONS = 1
    NUM_REPLICAS = 2
    NUM_MICRO_BATCHES = 1
    BACKBONE = 'ViTBackbone'
    BACKBONE_ARGUMENTS = {'patch_size': 8, 'num_layers': 4, 'num_heads': 4, 'hidden_dim': 64, 'mlp_dim': 128,
                          'dropout_rate': 0.1}
    EPOCHS = 60


DEFAULT = DigitsResNet
