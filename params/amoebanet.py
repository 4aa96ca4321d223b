"""AmoebaNet: the default on handwritten digits, CIFAR, and the giants of GPipe's paper on ImageNet."""

import keras

from lingpipe import base_model_params, model_registry
from lingpipe.input import image_input
from lingpipe.layers import amoebanet, keras_params
from lingpipe.models import image_classifier
from lingpipe.optimizers import learning_rate_schedules


@model_registry.RegisterSingleTaskModel
class AmoebaNetDDigits(base_model_params.SingleTaskModelParams):
    """AmoebaNet-D(3, 32) on the 1,797 handwritten digits of scikit-learn: trains in about a minute on two CPU cores."""

    NUM_PARTITIONS = 2
    NUM_MICRO_BATCHES = 4
    BATCH_SIZE = 64
    EPOCHS = 30

    def _Input(self, split, augmentation):
        return image_input.ImageInput.Params().Set(
            name=f'digits_{split}', dataset='digits', split=split, batch_size=self.BATCH_SIZE, image_size=32,
            augmentation=augmentation)

    def Train(self):
        return self._Input('train', 'digits')

    def Test(self):
        return self._Input('test', 'digits').Set(batch_size=180)

    def Task(self):
        p = image_classifier.ImageClassifier.Params().Set(name='amoebanet_d_digits')
        p.body.Set(
            num_partitions=self.NUM_PARTITIONS, num_micro_batches=self.NUM_MICRO_BATCHES, recompute='none',
            layers=amoebanet.amoebanet_layers(
                'D', num_cells=3, reduction_size=32, num_classes=10, use_auxiliary_head=False, dropout_rate=0.0,
                drop_path_final_keep_prob=1.0, batch_norm_momentum=0.9))
        steps_per_epoch = 1437 / self.BATCH_SIZE
        p.train.Set(
            max_steps=round(self.EPOCHS * steps_per_epoch),
            optimizer=keras_params.KerasParams(keras.optimizers.SGD, momentum=0.9, nesterov=True),
            lr_schedule=keras_params.KerasParams(
                keras.optimizers.schedules.CosineDecay, initial_learning_rate=0.0, warmup_target=0.2,
                warmup_steps=round(2 * steps_per_epoch), decay_steps=round((self.EPOCHS - 2) * steps_per_epoch)),
            l2_regularizer_weight=5e-4, save_interval_seconds=60.0, summary_interval_steps=20)
        return p


class _Published(base_model_params.SingleTaskModelParams):
    """Training as in the released AmoebaNet (tensorflow/tpu): constants of its model file and of arXiv 1802.01548."""

    GENOTYPE = 'D'
    NUM_CELLS = 18
    REDUCTION_SIZE = 256
    NUM_CLASSES = 1001
    IMAGE_SIZE = 224
    BATCH_SIZE = 128
    EVALUATION_BATCH_SIZE = 128
    NUM_TRAINING_EXAMPLES = 1_281_167
    EPOCHS = 100
    NUM_PARTITIONS = 1
    NUM_MICRO_BATCHES = 32
    RECOMPUTE = 'stage'
    LEARNING_RATE_OF_BATCH_256 = 0.015
    DATASET = 'imagenet2012'
    TEST_SPLIT = 'validation'
    TRAINING_AUGMENTATION = 'inception'
    LABEL_OFFSET = 1

    def _Input(self, split, batch_size):
        return image_input.ImageInput.Params().Set(
            name=f'{self.DATASET}_{split}', dataset=self.DATASET, split=split, batch_size=batch_size,
            image_size=self.IMAGE_SIZE, augmentation=self.TRAINING_AUGMENTATION, label_offset=self.LABEL_OFFSET)

    def Train(self):
        return self._Input('train', self.BATCH_SIZE)

    def Test(self):
        return self._Input(self.TEST_SPLIT, self.EVALUATION_BATCH_SIZE)

    def _StepsPerEpoch(self):
        return self.NUM_TRAINING_EXAMPLES / self.BATCH_SIZE

    def Task(self):
        steps_per_epoch = self._StepsPerEpoch()
        max_steps = round(self.EPOCHS * steps_per_epoch)
        p = image_classifier.ImageClassifier.Params().Set(
            name=f'amoebanet_{self.GENOTYPE.lower()}', label_smoothing=0.1, auxiliary_loss_weight=0.4)
        p.body.Set(
            num_partitions=self.NUM_PARTITIONS, num_micro_batches=self.NUM_MICRO_BATCHES, recompute=self.RECOMPUTE,
            layers=amoebanet.amoebanet_layers(
                self.GENOTYPE, self.NUM_CELLS, self.REDUCTION_SIZE, num_classes=self.NUM_CLASSES,
                drop_path_num_steps=max_steps))
        p.train.Set(
            max_steps=max_steps,
            optimizer=keras_params.KerasParams(keras.optimizers.RMSprop, rho=0.9, momentum=0.9, epsilon=1.0),
            lr_schedule=keras_params.KerasParams(
                learning_rate_schedules.WarmupExponentialDecay,
                initial_learning_rate=self.LEARNING_RATE_OF_BATCH_256 * self.BATCH_SIZE / 256,
                warmup_steps=round(3 * steps_per_epoch), decay_steps=round(2.4 * steps_per_epoch), decay_rate=0.97,
                minimum_fraction=1e-4),
            clip_gradient_norm_to_value=10.0, l2_regularizer_weight=4e-5, ema_decay=0.9999)
        p.eval.Set(interval_steps=round(steps_per_epoch))
        return p


@model_registry.RegisterSingleTaskModel
class AmoebaNetD18x256(_Published):
    """AmoebaNet-D(18, 256), 122M parameters: the model of GPipe's Table 2."""

    NUM_PARTITIONS = 2


@model_registry.RegisterSingleTaskModel
class AmoebaNetD18x208(_Published):
    """AmoebaNet-D(18, 208), 82M parameters: GPipe's Table 1, the largest for one device without GPipe."""

    REDUCTION_SIZE = 208


@model_registry.RegisterSingleTaskModel
class AmoebaNetD18x416(_Published):
    """AmoebaNet-D(18, 416), 318M parameters: GPipe's Table 1, one device with recomputation."""

    REDUCTION_SIZE = 416
    RECOMPUTE = 'layer'


@model_registry.RegisterSingleTaskModel
class AmoebaNetD18x544(_Published):
    """AmoebaNet-D(18, 544), 541M parameters: GPipe's Table 1, two partitions."""

    REDUCTION_SIZE = 544
    NUM_PARTITIONS = 2
    RECOMPUTE = 'layer'


@model_registry.RegisterSingleTaskModel
class AmoebaNetD36x544(_Published):
    """AmoebaNet-D(36, 544), 1.05B parameters: GPipe's Table 1, four partitions."""

    NUM_CELLS = 36
    REDUCTION_SIZE = 544
    NUM_PARTITIONS = 4
    RECOMPUTE = 'layer'


@model_registry.RegisterSingleTaskModel
class AmoebaNetD72x512(_Published):
    """AmoebaNet-D(72, 512), 1.8B parameters: GPipe's Table 1, eight partitions."""

    NUM_CELLS = 72
    REDUCTION_SIZE = 512
    NUM_PARTITIONS = 8
    RECOMPUTE = 'layer'


@model_registry.RegisterSingleTaskModel
class AmoebaNetB18x512(_Published):
    """AmoebaNet-B(18, 512), 557M parameters at 480 pixels: 84.4 % on ImageNet in GPipe's paper, four partitions."""

    GENOTYPE = 'B'
    REDUCTION_SIZE = 512
    IMAGE_SIZE = 480
    NUM_PARTITIONS = 4


@model_registry.RegisterSingleTaskModel
class AmoebaNetDCifar10(_Published):
    """AmoebaNet-D(6, 64) on CIFAR-10."""

    NUM_CELLS = 6
    REDUCTION_SIZE = 64
    NUM_CLASSES = 10
    IMAGE_SIZE = 32
    BATCH_SIZE = 128
    NUM_TRAINING_EXAMPLES = 50_000
    NUM_PARTITIONS = 2
    NUM_MICRO_BATCHES = 8
    DATASET = 'cifar10'
    TEST_SPLIT = 'test'
    TRAINING_AUGMENTATION = 'crop_flip'
    LABEL_OFFSET = 0
    WEIGHT_DECAY = 5e-4
    LEARNING_RATE = 0.1

    def Task(self):
        p = super().Task()
        steps = p.train.max_steps
        warmup_steps = round(5 * self._StepsPerEpoch())
        p.body.layers = amoebanet.amoebanet_layers(
            'D', self.NUM_CELLS, self.REDUCTION_SIZE, num_classes=self.NUM_CLASSES, drop_path_num_steps=steps,
            batch_norm_momentum=0.9)
        p.train.Set(
            optimizer=keras_params.KerasParams(keras.optimizers.SGD, momentum=0.9, nesterov=True),
            lr_schedule=keras_params.KerasParams(
                keras.optimizers.schedules.CosineDecay, initial_learning_rate=0.0, warmup_target=self.LEARNING_RATE,
                warmup_steps=warmup_steps, decay_steps=steps - warmup_steps),
            l2_regularizer_weight=self.WEIGHT_DECAY, ema_decay=0.999)
        return p


@model_registry.RegisterSingleTaskModel
class AmoebaNetBCifar10(AmoebaNetB18x512):
    """AmoebaNet-B(18, 512) of ImageNet, fine-tuned for CIFAR-10 at 480 pixels: 99.0 % in GPipe's paper.

    All weights except the two softmax layers' come from a training run of `AmoebaNetB18x512`, whose hyperparameters are
    used here (arXiv 1811.06965, section 4). Train that model first, with --logdir=logs/amoebanet_b, or name its
    checkpoint in `train.init_from_checkpoint_rules`.
    """

    START = 'logs/amoebanet_b/train/ckpt-1000912'
    NUM_CLASSES = 10
    NUM_TRAINING_EXAMPLES = 50_000
    DATASET = 'cifar10'
    TEST_SPLIT = 'test'
    TRAINING_AUGMENTATION = 'flip_cutout'
    LABEL_OFFSET = 0

    def Task(self):
        p = super().Task()
        p.train.init_from_checkpoint_rules = {self.START: ([('(.*)', '%s')], ['head/', 'auxiliary_head/01[01]_'])}
        return p


@model_registry.RegisterSingleTaskModel
class AmoebaNetBCifar100(AmoebaNetBCifar10):
    """`AmoebaNetBCifar10` for CIFAR-100: 91.3 % in GPipe's paper."""

    NUM_CLASSES = 100
    DATASET = 'cifar100'


DEFAULT = AmoebaNetDDigits
