import json

import pytest

from lingpipe.input import tfds_builders

_DICT = 'tensorflow_datasets.core.features.features_dict.FeaturesDict'
_TEXT = 'tensorflow_datasets.core.features.text_feature.Text'
_SPLIT = {'name': 'train', 'shardLengths': ['1'], 'numBytes': '10',
          'filepathTemplate': '{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}'}


def prepared(folder, features):
    """Write a dataset that is prepared, with no code of its own."""
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


def test_a_split_that_there_is_not_is_named(tmp_path):
    prepared(tmp_path, with_text(_TEXT))
    with pytest.raises(ValueError, match=r"^split: 'tarin' is not a split .*; did you mean train\? .*'train\[:90%\]'"):
        tfds_builders.Split('strange', 'tarin', str(tmp_path))
