"""How many tokens per second a pipeline generates with one group of prompts, and with a group per partition.

    pip install -e '.[hub]'
    python -m benchmarks.speed.generation --num_partitions=2

With one group, one partition computes while the others wait. With as many groups as partitions, no partition waits, so
K partitions should generate K times as many tokens per second. A partition has one core. Plain Keras generates the same
texts in separate processes: on one core and on all, once by operations and once compiled by XLA.
"""

import os
import statistics
import time

import keras
import numpy as np
from absl import app, flags

import lingpipe
from benchmarks.support import common
from lingpipe.devices import device_kinds
from lingpipe.models import pipelined_generation

_NUM_PARTITIONS = flags.DEFINE_integer('num_partitions', 2, 'Partitions K, each of one core.', lower_bound=2)
_BACKBONE = flags.DEFINE_string('backbone', 'GPTNeoX', "KerasHub's backbone, with num_heads among its arguments.")
_NUM_LAYERS = flags.DEFINE_integer('num_layers', 8, 'Its layers.', lower_bound=2)
_WIDTH = flags.DEFINE_integer('width', 256, 'Its width, a multiple of 4.', lower_bound=4)
_VOCAB_SIZE = flags.DEFINE_integer('vocab_size', 1000, 'Its vocabulary.', lower_bound=2)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 8, 'Prompts of a group.', lower_bound=1)
_PROMPT_LENGTH = flags.DEFINE_integer('prompt_length', 8, 'Tokens of the longest prompt.', lower_bound=1)
_LENGTH = flags.DEFINE_integer('length', 128, 'Tokens of a text, with its prompt.', lower_bound=2)
_SAMPLER = flags.DEFINE_string('sampler', 'greedy', "KerasHub's name of a sampler.")
_NUM_RUNS = flags.DEFINE_integer('num_runs', 5, 'Measured runs, of which the median counts.', lower_bound=1)
_HEADER = ['what generates', 'prompts', 'tokens/s', 'cores busy', 'of plain Keras on one core', 'same text']


def _task():
    import keras_hub
    keras.utils.set_random_seed(0)
    backbone = getattr(keras_hub.models, f'{_BACKBONE.value}Backbone')(
        vocabulary_size=_VOCAB_SIZE.value, num_layers=_NUM_LAYERS.value, num_heads=4, hidden_dim=_WIDTH.value,
        intermediate_dim=4 * _WIDTH.value)
    task = getattr(keras_hub.models, f'{_BACKBONE.value}CausalLM')(backbone=backbone, preprocessor=None)
    task.sampler = keras_hub.samplers.get(_SAMPLER.value)
    return task


def _prompts(num_rows):
    """Return prompts of different lengths, half as long as the longest at least."""
    random = np.random.default_rng(0)
    longest = _PROMPT_LENGTH.value
    lengths = random.integers((longest + 1) // 2, longest + 1, num_rows)
    mask = (np.arange(_LENGTH.value) < lengths[:, np.newaxis]).astype('int32')
    return {'token_ids': random.integers(1, _VOCAB_SIZE.value, mask.shape, 'int32') * mask, 'padding_mask': mask}


def _measured(generate, prompts):
    """Return seconds, cores busy and the tokens of one run."""
    begin, cpu = time.perf_counter(), os.times()
    tokens = np.array(generate(prompts)['token_ids'])
    seconds, after = time.perf_counter() - begin, os.times()
    return seconds, (after.user + after.system - cpu.user - cpu.system) / seconds, tokens


def _result(name, prompts, runs):
    seconds, cores, tokens = zip(*runs)
    num_tokens = prompts['padding_mask'].size - prompts['padding_mask'].sum()
    return {'name': name, 'prompts': len(prompts['token_ids']), 'tokens': num_tokens / statistics.median(seconds),
            'cores': statistics.median(cores), 'text': tokens[-1].tolist()}


def plain(jit_compile):
    """Measure plain Keras with the prompts of all groups.

    Yields:
        Dictionary of figures.
    """
    task, prompts = _task(), _prompts(_NUM_PARTITIONS.value * _BATCH_SIZE.value)
    task.jit_compile = jit_compile

    def generate(inputs):
        return task.generate(inputs, stop_token_ids=None)

    generate(prompts)
    runs = [_measured(generate, prompts) for _ in range(_NUM_RUNS.value)]
    yield _result('XLA' if jit_compile else 'operations', prompts, runs)


def pipelined():
    """Measure a pipeline with one group and with one per partition, in turns.

    Yields:
        List of dictionaries of figures.
    """
    device_kinds.use_virtual_devices(_NUM_PARTITIONS.value)
    pipe = lingpipe.GPipeLayer.from_keras(_task(), num_partitions=_NUM_PARTITIONS.value)
    model = lingpipe.PipelineModel(pipe)
    kinds = {f'{count} group{"s"[:count > 1]}': _prompts(_NUM_PARTITIONS.value * _BATCH_SIZE.value)
             for count in (1, _NUM_PARTITIONS.value)}
    kinds['1 group'] = {name: part[:_BATCH_SIZE.value] for name, part in kinds['1 group'].items()}
    generators = {}
    for name, prompts in kinds.items():
        model.predict_on_batch(prompts)
        generators[name] = pipelined_generation.PipelinedGeneration(model.source, pipe.stages, int(name.split()[0]))
        generators[name](prompts)
    runs = [[_measured(generators[name], prompts) for name, prompts in kinds.items()] for _ in range(_NUM_RUNS.value)]
    yield [_result(name, prompts, of_kind) for (name, prompts), of_kind in zip(kinds.items(), zip(*runs))]


def _row(name, found, one_core, texts):
    count = found['prompts']
    return [name, count, f'{found["tokens"]:,.0f}', f'{found["cores"]:.2f}', f'{found["tokens"] / one_core:.2f}',
            'yes' if found['text'] == texts[:count] else 'no']


def main(unused_argv):
    num_partitions = _NUM_PARTITIONS.value
    rows = [(f'plain Keras, {num_cores} core{"s"[:num_cores > 1]}, {"XLA" if jit_compile else "operations"}',
             common.measured(plain, jit_compile, num_cores=num_cores))
            for num_cores in (1, num_partitions) for jit_compile in (False, True)]
    texts, one_core = rows[0][1]['text'], max(found['tokens'] for _, found in rows[:2])
    one, many = common.measured(pipelined, num_cores=num_partitions)
    rows += [(f'{num_partitions} partitions, {found["name"]}', found) for found in (one, many)]
    common.report(
        common.Table(_HEADER, [_row(*row, one_core, texts) for row in rows]),
        f'{num_partitions} groups generate {many["tokens"] / one["tokens"]:.2f} times the tokens per second of one; '
        f'{num_partitions} would be ideal.')


if __name__ == '__main__':
    app.run(main)
