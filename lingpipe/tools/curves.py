"""Curves and texts of a run, read from the event files that it wrote for TensorBoard."""

from typing import NamedTuple

import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from lingpipe.training import errors

_NUM_SHOWN = 200


class Written(NamedTuple):
    """The contents of a folder's event files; if several runs have written a step, the last one counts."""

    scalars: dict[str, list[tuple[int, float]]]  # dictionary from name to the list of pairs (step, value), by step
    texts: dict[str, list[tuple[int, str]]]  # dictionary from name to the list of pairs (step, text), by step
    times: tuple[float, ...] = ()  # when the first and the last event were written, in seconds since 1970


def read(folder: str) -> Written:
    """Read all event files of a folder, which may be missing; a resumed run has several files.

    Raises:
        TrainingError: a file is corrupt.
    """
    if not tf.io.gfile.isdir(folder):
        return Written({}, {})
    try:
        return _read(folder)
    except Exception as error:  # a corrupt event can raise any error in TensorBoard
        reason = f'{type(error).__name__}: {str(error)[:_NUM_SHOWN]}'
        raise errors.TrainingError(f'The curves in {folder} cannot be read ({reason}). Delete the event file that is '
                                   'corrupt, or choose another --logdir.') from error


def _read(folder):
    scalars, texts, times = {}, {}, []
    accumulator = event_accumulator.EventAccumulator(folder, {'tensors': 0}, purge_orphaned_data=False)
    accumulator.Reload()
    for name in accumulator.Tags()['tensors']:
        events = sorted(accumulator.Tensors(name), key=lambda event: event.wall_time)
        times += [event.wall_time for event in events]
        kind = accumulator.SummaryMetadata(name).plugin_data.plugin_name
        if kind == 'text':
            texts[name] = [(step, _without_margin(text)) for step, text in _values(events)]
        elif kind == 'scalars':
            scalars[name] = [(step, float(value)) for step, value in _values(events)]
    return Written(scalars, texts, (min(times), max(times)) if times else ())


def _values(events):
    return sorted({event.step: tf.make_ndarray(event.tensor_proto).item() for event in events}.items())


def _without_margin(text):
    """Remove the margin that `progress.SummaryWriter` adds to texts, so that TensorBoard keeps their spaces."""
    return '\n'.join(line.removeprefix('    ') for line in text.decode('utf-8', 'replace').split('\n'))
