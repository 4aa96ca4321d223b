"""Texts that --mode=generate writes with the tokenizer of a preset, compared with plain KerasHub."""

import keras
import numpy as np
import pytest

from lingpipe.input import hub_tokenizer
from lingpipe.models import prompted_texts
from lingpipe.models.sampling import Sampling
from lingpipe.pipeline import gpipe_layer
from tests import needs
from tests.input import hub_presets

pytestmark = needs.keras_hub
LENGTH = 16
PROMPTS = ['a', 'c d', 'b a', 'd']


def as_if_trained(task, folder):
    """Fresh weights write the same token for ever."""
    random = np.random.default_rng(1)
    for variable in task.trainable_variables:
        variable.assign(variable + 0.5 * random.normal(size=variable.shape))
    task.save_to_preset(str(folder))
    return task


def texts(folder, prompts, sampling):
    body = gpipe_layer.GPipeLayer.from_preset(str(folder), num_partitions=2, devices=['CPU:1', 'CPU:2'])
    tokenizer = hub_tokenizer.KerasHubTokenizer.Params().Set(preset=str(folder)).Instantiate()
    found = prompted_texts.PromptedTexts(body, tokenizer, LENGTH, sampling).texts(prompts, LENGTH)
    return [prompt + text for prompt, text in zip(prompts, found)]


@pytest.mark.parametrize('name', ['gpt2', 'llama3', 'gemma'])
def test_texts_are_those_of_the_plain_preset(name, tmp_path):
    keras.utils.set_random_seed(0)
    plain = as_if_trained(getattr(hub_presets, name)(tmp_path, LENGTH), tmp_path)
    plain.compile(sampler='greedy', jit_compile=False)
    expected = plain.generate(PROMPTS)
    assert texts(tmp_path, PROMPTS, Sampling(temperature=0.0)) == expected
    assert len(set(map(len, expected))) > 1  # some have ended before others
