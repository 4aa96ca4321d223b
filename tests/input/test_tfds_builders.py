import json
import sys

import pytest

from lingpipe.input import tfds_builders

_DICT = 'tensorflow_datasets.core.features.features_dict.FeaturesDict'
_TEXT = 'tensorflow_datasets.core.features.text_feature.Text'
_SPLIT = {'name': 'train', 'shardLengths': ['1'], 'numBytes': '10',
          'filepathTemplate': '{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}'}


def prepared(folder, features):
    """Writes a dataset that is prepared, with no code of its own."""
    path = folder / 'strange/1.0.0'
    path.mkdir(parents=True)
    (path / 'dataset_info.json').write_text(json.dumps(
        {'name': 'strange', 'version': '1.0.0', 'fileFormat': 'tfrecord', 'splits': [_SPLIT]}))
    (path / 'features.json').write_text(json.dumps(features))


def with_text(name):
    return {'pythonClassName': _DICT, 'featuresDict': {'features': {'text': {'pythonClassName': name, 'text': {}}}}}


def test_a_prepared_dataset_without_code_is_read(tmp_path):
    prepared(tmp_path, with_text(_TEXT))
    assert list(tfds_builders.find_builder('strange', str(tmp_path)).info.features) == ['text']


@pytest.mark.parametrize('features', [
    with_text('stranger.Feature'), {'type': 'stranger.Feature', 'content': {}}, with_text(_TEXT) | {'type': 'stranger.Feature'}])
def test_data_name_no_module_to_import(tmp_path, monkeypatch, features):
    (tmp_path / 'stranger.py').write_text('raise SystemExit("it ran")')
    monkeypatch.syspath_prepend(tmp_path)
    prepared(tmp_path, features)
    with pytest.raises(ValueError, match="has a feature 'stranger.Feature' .*import that module in your params file"):
        tfds_builders.find_builder('strange', str(tmp_path))
    assert 'stranger' not in sys.modules


def test_a_damaged_description_is_named(tmp_path):
    prepared(tmp_path, {})
    (tmp_path / 'strange/1.0.0/features.json').write_text('[' * 10**5)
    with pytest.raises(ValueError, match="dataset: 'strange' cannot be read .*features.json: it is nested too deeply"):
        tfds_builders.find_builder('strange', str(tmp_path))
