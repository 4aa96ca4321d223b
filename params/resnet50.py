"""ResNet-50: the default on handwritten digits, and ImageNet with batches of 1,024 to 32,768."""

import math

import keras

from lingpipe import base_model_params, model_registry, optimizers
from lingpipe.input import image_input
from lingpipe.layers import keras_params, resnet
from lingpipe.models import image_classifier
from lingpipe.optimizers import learning_rate_schedules


@model_registry.RegisterSingleTaskModel
class ResNet50Digits(base_model_params.SingleTaskModelParams):
    """ResNet-50 with a quarter of the filters on the 1,797 handwritten digits of scikit-learn, trained with LARS."""

    NUM_PARTITIONS = 2
    NUM_MICRO_BATCHES = 4
    BATCH_SIZE = 128
    EPOCHS = 30
    WARMUP_EPOCHS = 3
    LEARNING_RATE = 4.0
    IMAGE_SIZE = 16

    def _Input(self, split, augmentation):
        return image_input.ImageInput.Params().Set(
            name=f'digits_{split}', dataset='digits', split=split, batch_size=self.BATCH_SIZE,
            image_size=self.IMAGE_SIZE, augmentation=augmentation)

    def Train(self):
        return self._Input('train', 'digits')

    def Test(self):
        return self._Input('test', 'digits').Set(batch_size=180)

    def Task(self):
        p = image_classifier.ImageClassifier.Params().Set(name='resnet50_digits', label_smoothing=0.1)
        p.body.Set(
            num_partitions=self.NUM_PARTITIONS, num_micro_batches=self.NUM_MICRO_BATCHES, recompute='none',
            layers=resnet.resnet_layers(50, num_classes=10, filters=16, for_small_images=True))
        steps_per_epoch = 1437 / self.BATCH_SIZE
        max_steps = round(self.EPOCHS * steps_per_epoch)
        p.train.Set(
            max_steps=max_steps, optimizer=keras_params.KerasParams(optimizers.LARS, momentum=0.9, weight_decay=1e-4),
            lr_schedule=keras_params.KerasParams(
                optimizers.WarmupPolynomialDecay, initial_learning_rate=self.LEARNING_RATE,
                warmup_steps=self.WARMUP_EPOCHS * steps_per_epoch, max_steps=max_steps),
            save_interval_seconds=60.0, summary_interval_steps=20)
        return p


class _ImageNet(base_model_params.SingleTaskModelParams):
    """The common part of all training runs on ImageNet: the network, its precision and its input.

    Convolutions and the activations between them are bfloat16; weights, the statistics of batch norm, the loss, sums of
    gradients and the optimizer are float32. Batch norm normalises over a micro-batch; replicas that share statistics
    normalise together, over one micro-batch each.
    """

    NUM_TRAINING_EXAMPLES = 1_281_167
    BATCH_SIZE = 1024
    MICRO_BATCH_SIZE = 128
    EVALUATION_BATCH_SIZE = 1024
    NUM_PARTITIONS = 1
    NUM_REPLICAS = 1
    BATCH_NORM_GROUP_SIZE = 1
    LABEL_SMOOTHING = 0.1

    def _Input(self, split, batch_size):
        return image_input.ImageInput.Params().Set(
            name=f'imagenet2012_{split}', dataset='imagenet2012', split=split, batch_size=batch_size, image_size=224,
            augmentation='resnet')

    def Train(self):
        return self._Input('train', self.BATCH_SIZE)

    def Test(self):
        return self._Input('validation', self.EVALUATION_BATCH_SIZE)

    def _StepsPerEpoch(self):
        return self.NUM_TRAINING_EXAMPLES / self.BATCH_SIZE

    def _MaxSteps(self):
        """Return the steps of 91 epochs, as in the released configurations."""
        return math.ceil(91 * self._StepsPerEpoch())

    def _SetTraining(self, train):
        """Set the optimizer and the learning rate."""
        raise NotImplementedError(f'{type(self).__name__} defines no training. Write its method _SetTraining(train).')

    def Task(self):
        p = image_classifier.ImageClassifier.Params().Set(
            name='resnet50', label_smoothing=self.LABEL_SMOOTHING, dtype_policy='mixed_bfloat16')
        p.body.Set(
            num_partitions=self.NUM_PARTITIONS, num_replicas=self.NUM_REPLICAS, schedule='1f1b', recompute='layer',
            num_micro_batches=self.BATCH_SIZE // (self.NUM_REPLICAS * self.MICRO_BATCH_SIZE),
            layers=resnet.resnet_layers(50, num_classes=1000, batch_norm_group_size=self.BATCH_NORM_GROUP_SIZE))
        p.train.max_steps = self._MaxSteps()
        self._SetTraining(p.train)
        p.eval.Set(interval_steps=round(4 * self._StepsPerEpoch()))
        return p


class _Sgd(_ImageNet):
    """Training as released for batches up to 4,096: SGD with momentum, learning rate in proportion to the batch."""

    LABEL_SMOOTHING = 0.0
    LEARNING_RATE_OF_BATCH_256 = 0.1

    def _SetTraining(self, train):
        steps_per_epoch = self._StepsPerEpoch()
        train.Set(
            optimizer=keras_params.KerasParams(keras.optimizers.SGD, momentum=0.9, nesterov=True),
            lr_schedule=keras_params.KerasParams(
                optimizers.WarmupPiecewiseConstantDecay,
                initial_learning_rate=learning_rate_schedules.linearly_scaled(
                    self.LEARNING_RATE_OF_BATCH_256, self.BATCH_SIZE),
                warmup_steps=5 * steps_per_epoch, boundaries=[epoch * steps_per_epoch for epoch in (30, 60, 80)]),
            l2_regularizer_weight=1e-4)


class _Lars(_ImageNet):
    """Training with LARS; rate and warm-up depend on batch size as in the released code."""

    WEIGHT_DECAY = 1e-4
    EPSILON = 0.0

    def _Rate(self):
        return learning_rate_schedules.resnet50_lars_rate(self.BATCH_SIZE)

    def _SetTraining(self, train):
        rate = self._Rate()
        train.Set(
            optimizer=keras_params.KerasParams(
                optimizers.LARS, momentum=0.9, weight_decay=self.WEIGHT_DECAY, epsilon=self.EPSILON),
            lr_schedule=keras_params.KerasParams(
                optimizers.WarmupPolynomialDecay, initial_learning_rate=rate.learning_rate,
                warmup_steps=rate.warmup_epochs * self._StepsPerEpoch(), max_steps=self._MaxSteps()))


@model_registry.RegisterSingleTaskModel
class ResNet50Batch1024(_Sgd):
    """Batch 1,024, as released for 8 cores of a TPU v3."""


@model_registry.RegisterSingleTaskModel
class ResNet50Batch4096(_Sgd):
    """Batch 4,096, as released for 32 cores."""

    BATCH_SIZE = 4096


@model_registry.RegisterSingleTaskModel
class ResNet50Batch8192(_Lars):
    """Batch 8,192, with the rate of the released code; no configuration of this size was released."""

    BATCH_SIZE = 8192


@model_registry.RegisterSingleTaskModel
class ResNet50Batch16384(_Lars):
    """Batch 16,384, as released for 128 cores."""

    BATCH_SIZE = 16_384


@model_registry.RegisterSingleTaskModel
class ResNet50Batch32768(_Lars):
    """Batch 32,768, as released for 256 to 2,048 cores."""

    BATCH_SIZE = 32_768


class _MLPerf(_Lars):
    """Training as in Google's results of MLPerf Training 0.6, which stop at 75.9 % accuracy."""

    LEARNING_RATE = None
    WARMUP_EPOCHS = 5
    MAX_STEPS = None
    WEIGHT_DECAY = 2e-4

    def _Rate(self):
        return learning_rate_schedules.LarsRate(self.LEARNING_RATE, self.WARMUP_EPOCHS)

    def _MaxSteps(self):
        return self.MAX_STEPS


@model_registry.RegisterSingleTaskModel
class ResNet50MLPerf4096(_MLPerf):
    """Batch 4,096: 32 cores, 60 to 64 epochs to the target."""

    BATCH_SIZE = 4096
    LEARNING_RATE = 10.0
    MAX_STEPS = 22_536


@model_registry.RegisterSingleTaskModel
class ResNet50MLPerf16384(_MLPerf):
    """Batch 16,384: 128 cores, 64 epochs to the target."""

    BATCH_SIZE = 16_384
    LEARNING_RATE = 25.0
    MAX_STEPS = 5634


@model_registry.RegisterSingleTaskModel
class ResNet50MLPerf32768(_MLPerf):
    """Batch 32,768: 512 to 2,048 cores (with 2,048: 72 to 76 epochs to the target); here any number of devices."""

    BATCH_SIZE = 32_768
    LEARNING_RATE = 31.2
    WARMUP_EPOCHS = 25
    MAX_STEPS = 2983
    WEIGHT_DECAY = 1e-4
    EPSILON = 1e-5


@model_registry.RegisterSingleTaskModel
class ResNet50MLPerf32768Cores512(ResNet50MLPerf32768):
    """A replica on each of 512 cores, 64 images a core."""

    NUM_REPLICAS = 512
    MICRO_BATCH_SIZE = 64


@model_registry.RegisterSingleTaskModel
class ResNet50MLPerf32768Cores1024(ResNet50MLPerf32768):
    """A replica on each of 1,024 cores, 32 images a core."""

    NUM_REPLICAS = 1024
    MICRO_BATCH_SIZE = 32


@model_registry.RegisterSingleTaskModel
class ResNet50MLPerf32768Cores2048(ResNet50MLPerf32768):
    """A replica on each of 2,048 cores, 16 images a core; batch norm normalises over the 128 images of eight cores."""

    NUM_REPLICAS = 2048
    MICRO_BATCH_SIZE = 16
    BATCH_NORM_GROUP_SIZE = 8


DEFAULT = ResNet50Digits
