"""Targets that a pipeline writes for sources, compared with plain KerasHub."""

import numpy as np
import pytest

import lingpipe
from lingpipe.input import hub_tokenizer, sequence_to_sequence_input
from lingpipe.models import text_writers
from lingpipe.models.sampling import Sampling
from tests import needs
from tests.input import hub_presets

pytestmark = needs.keras_hub
SOURCES = ['ab', 'd c a', 'abcd', 'c']


@pytest.fixture(name='preset', scope='module')
def preset_fixture(tmp_path_factory):
    """Folder of a preset with weights that are not all alike, and the plain task."""
    folder = str(tmp_path_factory.mktemp('presets') / 'bart')
    task = hub_presets.bart(folder)
    random = np.random.default_rng(5)  # with which targets differ
    for variable in task.trainable_variables:
        variable.assign(variable + 0.3 * random.normal(size=variable.shape))
    task.save_to_preset(folder)
    task.compile(sampler='greedy', jit_compile=False)
    return folder, task


@pytest.fixture(name='writer', scope='module')
def writer_fixture(preset):
    folder, _ = preset
    tokenizer = hub_tokenizer.KerasHubTokenizer.Params().Set(preset=folder).Instantiate()
    spec = sequence_to_sequence_input.SequenceToSequenceInput.InputSpec(
        sequence_to_sequence_input.SequenceToSequenceInput.Params().Set(sequence_length=8, target_length=6))
    body = lingpipe.GPipeLayer.from_preset(folder, 'seq_2_seq_lm', num_partitions=2)
    body.build_from_specs(spec)
    return text_writers.text_writer(body, tokenizer, spec, Sampling(temperature=0.0))


def test_targets_are_those_of_plain_kerashub(preset, writer):
    found = writer.texts(SOURCES, 3)
    assert found == preset[1].generate(SOURCES, max_length=5) and len(set(found)) > 1
    assert writer.shown('ab', 'c') == 'ab -> c'


@pytest.mark.parametrize(('source', 'words'), [
    ('', 'Prompt 2 has 0 tokens, but the model reads 1 to 6'), ('abcdabc', 'Prompt 2 has 7 tokens.*sequence_length')])
def test_a_source_that_the_model_cannot_read_is_refused(writer, source, words):
    with pytest.raises(ValueError, match=words):
        writer.texts(['a', source], 6)
