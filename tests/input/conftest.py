import pytest

from tests.input import hub_presets


@pytest.fixture(name='preset', scope='session')
def preset_fixture(tmp_path_factory):
    """The folder of a tiny BERT of KerasHub, and its preprocessor."""
    folder = tmp_path_factory.mktemp('presets') / 'bert'
    return str(folder), hub_presets.bert(folder).preprocessor
