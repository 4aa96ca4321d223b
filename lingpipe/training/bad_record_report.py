"""Telling a person which records an input had to skip."""

_NUM_NAMED = 5


def count(data):
    """Returns how many bad records an input has met since it was made; None where it looks for none.

    Args:
        data: an input, such as `ImageInput`.
    """
    return None if data.bad_records is None else len(data.bad_records)


def text(inputs):
    """Returns which records were skipped and why: the first few of each input by name; empty where all were good.

    Args:
        inputs: dictionary from a dataset's name, such as 'Train', to its input.
    """
    return '\n'.join(_of_input(name, data) for name, data in inputs.items() if count(data))


def _of_input(name, data):
    bad = list(data.bad_records.items())
    records = 'record' if len(bad) == 1 else 'records'
    lines = [f'{name}: {len(bad)} bad {records} of {data.params.dataset!r}; {data.params.max_bad_records} may be skipped']
    lines += [f'  {record}, which {reason}' for record, reason in bad[:_NUM_NAMED]]
    if len(bad) > _NUM_NAMED:
        lines.append(f'  and {len(bad) - _NUM_NAMED} more, named in the log')
    return '\n'.join(lines)
