"""Runs a program from its source and says what came out."""

import gc
import linecache

from lingpipe.pipeline import keras_model
from tests.fuzz import comparison, program

_FILE = 'fuzzed_program.py'


def outcome_of(drawn):
    """Runs a `Program`.

    Returns:
        `comparison.Outcome`.
    """
    return outcome_of_source(program.source_of(drawn))


def outcome_of_source(source):
    """Runs the source of a program; see `program.source_of`."""
    namespace = {}
    try:
        namespace = _run(source)
        return comparison.compare(*[namespace[name] for name in program.ARGUMENTS], **namespace['run'])
    finally:
        comparison.forget()
        namespace.clear()
        gc.collect()  # graphs are large, and hold each other


def sizes_of(drawn):
    """Returns how many layer calls the model of a `Program` is to a cut, and how many weights it trains.

    Keras makes calls of its own for masks, so the nodes alone do not tell.
    """
    namespace = _run(program.source_of_model(drawn))
    try:
        model = namespace['make']()
        return len(keras_model.ModelGraph(model).units), len(model.trainable_variables)
    except Exception:  # noqa: BLE001  what it is will be told when it is run
        return len(drawn.nodes), 1
    finally:
        comparison.forget()


def _run(source):
    """Returns the names that a source defines; TensorFlow reads it again where it translates control flow."""
    linecache.cache[_FILE] = len(source), None, source.splitlines(keepends=True), _FILE
    namespace = {'__name__': 'fuzzed'}
    exec(compile(source, _FILE, 'exec'), namespace)  # what is printed is what is run
    return namespace
