"""Text generated through a pipeline, compared with plain KerasHub."""

import keras
import numpy as np
import pytest

import lingpipe
from tests import needs

pytestmark = needs.keras_hub
SIZES = {'vocabulary_size': 30, 'num_layers': 3, 'hidden_dim': 16, 'intermediate_dim': 16}
HEADS = {**SIZES, 'num_heads': 2}
GROUPED_HEADS = {**SIZES, 'num_query_heads': 4, 'num_key_value_heads': 2}
LENGTH = 12
STOPS = (7, 9)


def make_task(hub, name='GPT2', sizes=None, kind='CausalLM', preprocessor=None):
    keras.utils.set_random_seed(0)
    backbone = getattr(hub.models, f'{name}Backbone')(**(sizes or {**HEADS, 'max_sequence_length': LENGTH}))
    task = getattr(hub.models, name + kind)(backbone=backbone, preprocessor=preprocessor)
    random = np.random.default_rng(1)
    for variable in task.trainable_variables:
        variable.assign(variable + 0.3 * random.normal(size=variable.shape))
    task.jit_compile = False  # XLA rounds otherwise, which may tip a draw
    return task


def prompts(prefix='', num_rows=5):
    random = np.random.default_rng(2)
    mask = (np.arange(LENGTH) < np.array([3, 5, 4, 7, 6])[:num_rows, np.newaxis]).astype('int32')
    return {f'{prefix}token_ids': random.integers(1, 30, mask.shape, 'int32') * mask, f'{prefix}padding_mask': mask}


def translation_prompts():
    random = np.random.default_rng(3)
    tokens = random.integers(1, 30, [5, 6], 'int32')
    return {'encoder_token_ids': tokens, 'encoder_padding_mask': np.ones_like(tokens), **prompts('decoder_')}


def pipelined(task, num_partitions=2, **fields):
    pipe = lingpipe.GPipeLayer.from_keras(
        task, num_partitions=num_partitions, devices=[f'CPU:{1 + place}' for place in range(num_partitions)], **fields)
    return lingpipe.PipelineModel(pipe)


def assert_same_text(found, expected):
    """Compare tokens up to the end of each text, behind which samplers leave what they please."""
    name = next(name for name in expected if name in ('padding_mask', 'decoder_padding_mask'))
    mask = np.array(expected[name]).astype(bool)
    np.testing.assert_array_equal(np.array(found[name]).astype(bool), mask)
    tokens = name.replace('padding_mask', 'token_ids')
    np.testing.assert_array_equal(np.array(found[tokens])[mask], np.array(expected[tokens])[mask])


def samplers(hub):
    return {'greedy': hub.samplers.GreedySampler, 'top_k': lambda: hub.samplers.TopKSampler(k=10, seed=3, temperature=0.7),
            'top_p': lambda: hub.samplers.TopPSampler(p=0.8, k=20, seed=4)}


@pytest.mark.parametrize('name, stop_token_ids', [('greedy', None), ('top_k', STOPS), ('top_p', STOPS)])
def test_texts_are_those_of_the_plain_task(hub, name, stop_token_ids):
    task, sampler = make_task(hub), samplers(hub)[name]
    task.compile(sampler=sampler(), jit_compile=False)
    expected = [task.generate(prompts(), stop_token_ids=stop_token_ids) for _ in range(2)]
    model, again = pipelined(task), sampler()
    for texts in expected:  # of which the second goes on with the random numbers of the first
        assert_same_text(model.generate(prompts(), stop_token_ids=stop_token_ids, sampler=again), texts)


@pytest.mark.parametrize('name, sizes', [
    ('GPTNeoX', HEADS), ('Gemma', {**GROUPED_HEADS, 'head_dim': 4}),
    pytest.param('Mixtral', {**GROUPED_HEADS, 'num_layers': 2, 'num_experts': 2}, marks=pytest.mark.slow)])
def test_architectures_keep_caches_on_their_devices(hub, name, sizes):
    task = make_task(hub, name, sizes)
    task.compile(sampler='greedy', jit_compile=False)
    expected = task.generate(prompts(), stop_token_ids=STOPS)
    model = pipelined(task)
    assert_same_text(model.generate(prompts(), stop_token_ids=STOPS), expected)
    assert set(_cache_devices(model)['cache']) == {'CPU:1', 'CPU:2'}


@pytest.mark.parametrize('name', ['Bart', 'T5'])
def test_sequences_are_decoded_with_caches(hub, name):
    sizes = {**HEADS, 'max_sequence_length': LENGTH} if name == 'Bart' else HEADS
    task = make_task(hub, name, sizes, 'Seq2SeqLM')
    task.compile(sampler='greedy', jit_compile=False)
    expected = task.generate(translation_prompts(), stop_token_ids=STOPS)
    model = pipelined(task)
    assert_same_text(model.generate(translation_prompts(), stop_token_ids=STOPS), expected)
    assert all('CPU:2' in devices for devices in _cache_devices(model).values())


def _cache_devices(model):
    calls = model._kept.generation[1]._calls.values()
    return {name: [device for split in splits for device in split.devices]
            for call in calls for name, splits in call.splits.items()}


def test_fewer_prompts_than_partitions_are_generated(hub):
    task = make_task(hub)
    task.compile(sampler='greedy', jit_compile=False)
    expected = task.generate(prompts(num_rows=1), stop_token_ids=STOPS)
    assert_same_text(pipelined(task, 3).generate(prompts(num_rows=1), stop_token_ids=STOPS), expected)


def test_xla_compiles_each_partition(hub):
    task = make_task(hub)
    task.compile(sampler='greedy')
    expected = task.generate(prompts(), stop_token_ids=STOPS)
    assert_same_text(pipelined(task, jit_compile=True).generate(prompts(), stop_token_ids=STOPS), expected)


def test_strings_are_continued(hub, tmp_path):
    vocabulary = {'<|endoftext|>': 0, **{text: 1 + place for place, text in enumerate([*'abcde', 'ab', 'de'])}}
    tokenizer = hub.models.GPT2Tokenizer(vocabulary=vocabulary, merges=['a b', 'd e'])
    preprocessor = hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=LENGTH)
    task = make_task(hub, sizes={**HEADS, 'vocabulary_size': 8, 'max_sequence_length': LENGTH}, preprocessor=preprocessor)
    task.compile(sampler='greedy', jit_compile=False)
    expected = task.generate(['ab', 'cde'], strip_prompt=True)
    assert pipelined(task).generate(['ab', 'cde'], strip_prompt=True) == expected
    task.save_to_preset(str(tmp_path))
    model = lingpipe.PipelineModel(lingpipe.GPipeLayer.from_preset(str(tmp_path), num_partitions=2))
    assert model.generate(['ab', 'cde'], strip_prompt=True, sampler='greedy') == expected
    assert all(isinstance(text, str) for text in model.generate(['ab', 'cde']))


def test_trained_weights_generate_the_next_text(hub):
    task = make_task(hub)
    model = pipelined(task)
    model.generate(prompts(), stop_token_ids=None, sampler='greedy')
    for variable in task.trainable_variables:
        variable.assign(variable * 1.5)
    task.jit_compile = False
    expected = task.generate(prompts(), stop_token_ids=None)
    assert_same_text(model.generate(prompts(), stop_token_ids=None), expected)


@pytest.mark.parametrize('name', ['contrastive', 'beam', 'greddy'])
def test_samplers_that_do_not_only_draw_are_refused(hub, name):
    with pytest.raises(NotImplementedError, match="is not one of those that only draw the next token.*'greedy'"):
        pipelined(make_task(hub)).generate(prompts(), stop_token_ids=None, sampler=name)
