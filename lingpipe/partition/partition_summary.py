"""The layers of each partition, as a table for people."""

import re

from lingpipe import text_tables


def parameters_in_words(parts: list) -> str:
    """Return how many parameters there are, and how many of them are trained if some are frozen."""
    trained, frozen = sum(part.num_parameters for part in parts), sum(part.num_frozen for part in parts)
    return f'{trained + frozen:,} parameters, of which {trained:,} are trained' if frozen else f'{trained:,} parameters'


def parameter_columns(parts: list) -> tuple[list[str], list[list[int]]]:
    """Return titles and columns of the parameters, and of the trained ones if some are frozen."""
    columns = {'parameters': [part.num_parameters + part.num_frozen for part in parts]}
    if any(part.num_frozen for part in parts):
        columns['trained'] = [part.num_parameters for part in parts]
    return list(columns), list(columns.values())


def table(partitions: list) -> str:
    """Return a table with one row per partition."""
    columns = [
        ('partition', range(len(partitions))),
        ('device', [short_device(part.device) for part in partitions]),
        ('from .. to', [span(part.layer_names) for part in partitions]),
        ('layers', [len(part.layer_names) for part in partitions]),
        *zip(*parameter_columns(partitions)),
        *_cost_columns('MFLOPs', [part.flops / 1e6 for part in partitions])]
    if partitions[0].seconds is not None:
        columns += _cost_columns('ms a micro-batch', [1e3 * part.seconds for part in partitions])
    if partitions[0].memory is not None:
        columns.append(('MB by estimate', [part.memory / 1e6 for part in partitions]))
    titles, values = zip(*columns)
    return text_tables.table(list(titles), list(map(list, zip(*values))))


def _cost_columns(title, costs):
    mean = sum(costs) / len(costs)
    return [(title, costs), ('of mean', [f'{cost / mean:.2f}' if mean else '-' for cost in costs])]


def short_device(device: str) -> str:
    """Return 'CPU:1' for a device of this machine, 'worker:0/CPU:1' for a device of a worker."""
    here = re.sub('^/job:(localhost|chief)/replica:0/task:0', '', device)
    return re.sub(r'^/job:(\w+)/replica:0/task:(\d+)', r'\1:\2', here).replace('/device:', '/').lstrip('/')


def span(names: list[str]) -> str:
    """Return the names of the first and the last layer of a partition."""
    return names[0] if len(names) == 1 else f'{names[0]} .. {names[-1]}'
