"""Runs a program from its source and says what came out."""

from lingpipe.pipeline import keras_model
from tests.fuzz import comparison, program


def outcome_of(drawn):
    """Runs a `Program`.

    Returns:
        `comparison.Outcome`.
    """
    return outcome_of_source(program.source_of(drawn))


def sizes_of(drawn):
    """Returns how many layer calls the model of a `Program` is to a cut, and how many weights it trains.

    Keras makes calls of its own for masks, so the nodes alone do not tell.
    """
    namespace = {'__name__': 'fuzzed'}
    exec(compile(program.source_of_model(drawn), 'fuzzed program', 'exec'), namespace)
    try:
        model = namespace['make']()
        return len(keras_model.ModelGraph(model).units), len(model.trainable_variables)
    except Exception:  # noqa: BLE001  what it is will be told when it is run
        return len(drawn.nodes), 1
    finally:
        comparison.forget()


def outcome_of_source(source):
    """Runs the source of a program; see `program.source_of`."""
    namespace = {'__name__': 'fuzzed'}
    try:
        exec(compile(source, 'fuzzed program', 'exec'), namespace)  # what is printed is what is run
        return comparison.compare(*[namespace[name] for name in program.ARGUMENTS], **namespace['run'])
    finally:
        comparison.forget()
