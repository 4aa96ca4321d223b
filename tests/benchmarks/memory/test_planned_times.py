"""Predicted beside measured step times: the command at its smallest size."""


from lingpipe.partition import layer_profile
from lingpipe.stages import graph_pieces

_TINY = ['--model=decoder', '--num_blocks=1', '--width=8', '--sequence_length=4', '--batch_size=4', '--num_steps=1',
         '--partitions=1,2', '--counts=2', '--schedules=1f1b', '--recompute=stage']


def _once(function):
    """Every core would measure the same here."""
    found = []

    def call(*arguments):
        found.append(found[0] if found else function(*arguments))
        return found[0]

    return call


def test_one_row_per_configuration_and_one_schedule_on_one_device(
        run_benchmark, monkeypatch):
    monkeypatch.setattr(graph_pieces, '_graph_def',
                        graph_pieces._graph_def)  # which a measured pipeline changes for good
    monkeypatch.setattr(layer_profile, 'profile_layers', _once(layer_profile.profile_layers))
    text = run_benchmark('memory.planner_accuracy', '--what=time', *_TINY)
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in text.splitlines()
            if line.startswith('|')][2:]
    assert [row[:4] for row in rows] == [['gpipe', '1', '2', 'stage'], ['1f1b', '2', '2', 'stage']]
    assert rows[0][6:] == ['1.00', '1.00', '1.00']
    assert '1 relative times within 10 %' in text
