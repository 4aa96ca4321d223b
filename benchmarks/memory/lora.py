"""What LoRA saves: the default KerasHub model fine-tuned as a whole, against low-rank parts of its attention.

    pip install -e '.[hub]'
    python -m benchmarks.memory.lora

Both train `params.keras_hub.PydocGPTNeoX` with its AdamW over two partitions, on random tokens, in processes of their own.
The optimizer keeps two numbers for each trained parameter, so its slots shrink as the trained parameters do. Gradients
still pass through every layer above the first that has low-rank parts; those of the frozen weights are not computed.
"""

import math
import statistics
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks.support import common
from lingpipe import model_registry
from lingpipe.devices import device_kinds
from lingpipe.models import pipeline_model

_RANK = flags.DEFINE_integer('rank', 4, 'Rank of the low-rank parts.', lower_bound=1)
_NUM_LAYERS = flags.DEFINE_integer('num_layers', None, 'Decoder layers; by default those of the model.', lower_bound=2)
_WIDTH = flags.DEFINE_integer('width', None, 'Width, a multiple of 8; by default that of the model.', lower_bound=8)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 16, 'Rows of a batch.', lower_bound=1)
_SEQUENCE_LENGTH = flags.DEFINE_integer('sequence_length', 128, 'Tokens of a row.', lower_bound=1)
_NUM_STEPS = flags.DEFINE_integer('num_steps', 20, 'Measured steps; the median counts.', lower_bound=1)
_KIB = 2**10
_HEADER = ['fine-tuned', 'trained parameters', 'of all', 'slots KiB', 'of full', 'ms a step', 'of full', 'peak MiB']


def body_params(rank):
    """Returns the Params of the default model's body.

    Args:
        rank: that of LoRA; None: everything is trained.
    """
    body = model_registry.GetParams('params.keras_hub.PydocGPTNeoX', 'Train').task.body
    sizes = {'num_layers': _NUM_LAYERS.value, 'hidden_dim': _WIDTH.value,
             'intermediate_dim': _WIDTH.value and 4 * _WIDTH.value}
    body.model.backbone_arguments.update({name: size for name, size in sizes.items() if size})
    if rank:
        body.model.Set(lora_rank=rank, lora_layers=['.*/query_key_value'])
    return body.Set(name='body')


def make_model(rank):
    """Returns the compiled `PipelineModel`, and a batch of random tokens with those that follow them."""
    body = body_params(rank)
    pipe = body.Instantiate()
    shape = [_BATCH_SIZE.value, _SEQUENCE_LENGTH.value]
    vocab_size = body.model.backbone_arguments['vocabulary_size']
    tokens = np.random.default_rng(0).integers(1, vocab_size, [shape[0], shape[1] + 1], np.int32)
    inputs = {'token_ids': tokens[:, :-1], 'padding_mask': np.ones(shape, bool)}
    pipe.build_from_specs({name: tf.TensorSpec(shape, part.dtype) for name, part in inputs.items()})
    model = pipeline_model.PipelineModel(pipe)
    model.compile(keras.optimizers.AdamW(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, inputs, tokens[:, 1:]


def measure(rank):
    """Runs in a process of its own, since nothing may be left from a model built before.

    Yields:
        Number of trained parameters and of all, bytes of slots, milliseconds of a step, MiB at its peak or None.
    """
    device_kinds.use_virtual_devices(2)
    model, inputs, targets = make_model(rank)
    times = []

    def train(num_steps):
        for _ in range(num_steps):
            start = time.perf_counter()
            model.train_on_batch(inputs, targets)
            times.append(1000 * (time.perf_counter() - start))

    train(3)
    peak = common.peak_mib(train, _NUM_STEPS.value)
    yield [_num_values(model.trainable_variables), _num_values(model.weights), slot_bytes(model.optimizer),
           statistics.median(times[3:]), peak]


def slot_bytes(optimizer):
    """Returns the bytes of what an optimizer keeps for weights; its counters have no dimensions."""
    return sum(tf.as_dtype(slot.dtype).size * math.prod(slot.shape) for slot in optimizer.variables if len(slot.shape))


def _num_values(variables):
    return sum(math.prod(variable.shape) for variable in variables)


def main(unused_argv):
    found = {}
    for name, rank in {'everything': None, f'LoRA, rank {_RANK.value}': _RANK.value}.items():
        with common.Process(measure, rank, num_cores=2, environment=common.COUNTING_MEMORY) as process:
            found[name] = process.next()
    _, num_all, full_slots, full_time, _ = found['everything']
    rows = [[name, f'{trained:,}', f'{trained / num_all:.2%}', f'{slots / _KIB:,.0f}', f'{slots / full_slots:.2%}',
             f'{milliseconds:.1f}', f'{milliseconds / full_time:.2f}', common.mib_text(peak)]
            for name, (trained, _, slots, milliseconds, peak) in found.items()]
    common.report(common.markdown_table(_HEADER, rows))


if __name__ == '__main__':
    app.run(main)
