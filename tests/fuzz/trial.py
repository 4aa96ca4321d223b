"""Runs a program from its source and says what came out."""

from tests.fuzz import comparison, program


def outcome_of(drawn):
    """Runs a `Program`.

    Returns:
        `comparison.Outcome`.
    """
    return outcome_of_source(program.source_of(drawn))


def outcome_of_source(source):
    """Runs the source of a program; see `program.source_of`."""
    namespace = {'__name__': 'fuzzed'}
    try:
        exec(compile(source, 'fuzzed program', 'exec'), namespace)  # what is printed is what is run
        return comparison.compare(*[namespace[name] for name in program.ARGUMENTS], **namespace['run'])
    finally:
        comparison.forget()
