import json
import os

import pytest

from lingpipe.input import hub_tokenizer, preset_files
from tests import needs

pytestmark = needs.keras_hub
_INDEX = 'model.safetensors.index.json'


@pytest.fixture(name='folder')
def folder_fixture(tmp_path):
    path = tmp_path / 'models/snapshots/revision'
    path.mkdir(parents=True)
    (path / 'config.json').write_text('{"model_type": "gpt2", "n_layer": 2}')
    return path


def write_index(folder, *names):
    (folder / _INDEX).write_text(json.dumps({'weight_map': {str(place): name for place, name in enumerate(names)}}))


def test_files_of_a_folder_count_as_its_weights(folder):
    write_index(folder, 'a.safetensors', 'b.safetensors', 'a.safetensors')
    (folder / 'a.safetensors').write_bytes(bytes(5))
    (folder / 'b.safetensors').write_bytes(bytes(7))
    preset_files.check(str(folder))
    assert preset_files.num_bytes_of_weights(str(folder)) == 12


@pytest.mark.parametrize('name', ['../secret', '/etc/passwd', 'a/../../secret', None, 3])
def test_an_index_names_files_of_its_folder_alone(folder, name):
    write_index(folder, 'a.safetensors', name)
    with pytest.raises(ValueError, match='which is no file of the preset'):
        preset_files.check(str(folder))


def test_links_lead_out_only_into_the_cache_of_downloads(folder):
    (folder.parents[1] / 'blobs').mkdir()
    for place, target in (('vocab.json', folder.parents[1] / 'blobs/1'), ('merges.txt', folder / 'config.json')):
        target.touch()
        (folder / place).symlink_to(target)
    preset_files.check(str(folder))
    (folder.parents[2] / 'secret').touch()
    (folder / 'spiece.txt').symlink_to(folder.parents[2] / 'secret')
    with pytest.raises(ValueError, match='spiece.txt is a link to .*secret, outside of the folder'):
        preset_files.check(str(folder))


def test_files_without_an_end_are_refused(folder):
    os.mkfifo(folder / 'vocab.json')
    with pytest.raises(ValueError, match='a pipe or a device'):
        preset_files.check(str(folder))
    (folder / 'vocab.json').unlink()
    (folder / 'vocab.json').touch()
    os.truncate(folder / 'vocab.json', 2**32)
    with pytest.raises(ValueError, match='vocab.json has more than 67,108,864 bytes'):
        preset_files.check(str(folder))


@pytest.mark.parametrize('config', [{'n_layer': 10**9}, {'config': {'num_layers': 1e12}}, {'blocks': [[3, 10**5]]}])
def test_a_billion_layers_are_not_made(folder, config):
    preset_files.require_few_layers({'num_layers': 10_000, 'hidden_dim': 10**6})
    with pytest.raises(ValueError, match='no model has more than 10,000 layers'):
        preset_files.require_few_layers(config)


def test_whatever_a_preset_raises_is_a_sentence(folder):
    for error in (RecursionError('deep'), MemoryError(), AssertionError('x' * 5000)):
        def load(preset, error=error):
            raise error
        with pytest.raises(ValueError, match='preset=.* cannot be loaded .*Give the folder of') as caught:
            hub_tokenizer.load_preset('preset', str(folder), load)
        assert len(str(caught.value)) < 1000
