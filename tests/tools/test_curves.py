import pytest
import tensorflow as tf
from tensorboard.compat.proto import event_pb2

from lingpipe.tools.report import curves
from lingpipe.training import errors, progress


@pytest.fixture(name='folder')
def folder_fixture(tmp_path):
    writer = progress.SummaryWriter(str(tmp_path))
    writer.scalars(3, {'loss': 0.5})
    writer.flush()
    return tmp_path


def test_a_point_that_is_no_number_is_refused(folder):
    assert curves.read(str(folder)).scalars == {'loss': [(3, 0.5)]}
    event = event_pb2.Event(step=4)
    value = event.summary.value.add(tag='loss')
    value.tensor.ParseFromString(tf.make_tensor_proto([1.0, 2.0]).SerializeToString())
    value.metadata.plugin_data.plugin_name = 'scalars'
    with tf.io.TFRecordWriter(str(folder / 'events.out.tfevents.2.there')) as writer:
        writer.write(event.SerializeToString())
    with pytest.raises(errors.TrainingError, match='cannot be read .ValueError: .* Delete the event file'):
        curves.read(str(folder))


def test_whatever_a_damaged_event_trips_is_a_sentence(folder, monkeypatch):
    def trip(self):
        raise KeyError('x' * 1000)

    monkeypatch.setattr(curves.event_accumulator.EventAccumulator, 'Reload', trip)
    with pytest.raises(errors.TrainingError, match='KeyError: .x+') as caught:
        curves.read(str(folder))
    assert len(str(caught.value)) < 600
