import pytest

from lingpipe.tools.report import curves
from lingpipe.training import errors, progress


@pytest.fixture(name='folder')
def folder_fixture(tmp_path):
    writer = progress.SummaryWriter(str(tmp_path))
    writer.scalars(3, {'loss': 0.5})
    writer.flush()
    return tmp_path


def test_whatever_a_damaged_event_trips_is_a_sentence(folder, monkeypatch):
    def trip(self):
        raise KeyError('x' * 1000)

    monkeypatch.setattr(curves.event_accumulator.EventAccumulator, 'Reload', trip)
    with pytest.raises(errors.TrainingError, match='KeyError: .x+') as caught:
        curves.read(str(folder))
    assert len(str(caught.value)) < 600
