"""Runs a program from its source and says what came out."""

import gc
import itertools
import linecache

from lingpipe.keras_graph import keras_model
from tests.fuzz import comparison, program

_numbers = itertools.count()


def outcome_of(drawn):
    """Run a `Program`."""
    return outcome_of_source(program.source_of(drawn))


def sizes_of(drawn):
    """Return how many layer calls the model of a `Program` is to a cut, and how many weights it trains.

    Keras makes calls of its own for masks, so the nodes alone do not tell.
    """
    try:
        model = _executed(program.source_of_model(drawn))['make']()
        return len(keras_model.ModelGraph(model).units), len(model.trainable_variables)
    except Exception:  # noqa: BLE001  what it is will be told when it is run
        return len(drawn.nodes), 1
    finally:
        comparison.forget()


def outcome_of_source(source):
    """Run the source of a program; see `program.source_of`."""
    try:
        namespace = _executed(source)  # what is printed is what is run
        return comparison.compare(*[namespace[name] for name in program.ARGUMENTS], **namespace['run'])
    finally:
        comparison.forget()
        namespace = None
        gc.collect()  # graphs are large, and hold each other


def _executed(source):
    """Return the names of a program, whose lines Python finds as it finds those of a file: `tf.function`s of layers need them."""
    name, namespace = f'<fuzzed program {next(_numbers)}>', {'__name__': 'fuzzed'}
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, 'exec'), namespace)
    return namespace
