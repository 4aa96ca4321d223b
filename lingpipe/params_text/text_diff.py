"""The differences between two Params, as text."""

from lingpipe.params_text import param_tree


def diff(first, second):
    """Returns how two Params differ; '' if they are equal.

    Args:
        first: Params, whose values stand after `>`.
        second: Params, whose values stand after `<`.
    """
    return _diff_fields(first, second, ' ')


def _diff_fields(first, second, indent):
    first, second = _fields(first), _fields(second)
    lines = []
    for key in sorted(first.keys() | second.keys(), key=str):
        if key not in second:
            lines.append(f'>{indent}{key}: {first[key]}\n')
        elif key not in first:
            lines.append(f'<{indent}{key}: {second[key]}\n')
        else:
            lines.append(_diff_values(first[key], second[key], key, indent))
    return ''.join(lines)


def _fields(value):
    return dict(value.IterParams()) if param_tree.is_params(value) else value


def _diff_values(first, second, key, indent):
    if param_tree.equal(first, second):
        return ''
    if all(param_tree.is_params(value) or isinstance(value, dict) for value in (first, second)):
        return f'?{indent}{key}:\n' + _diff_fields(first, second, indent + '  ')
    if all(isinstance(value, (list, tuple)) for value in (first, second)):
        return _diff_sequences(first, second, key, indent)
    return f'>{indent}{key}: {first}\n<{indent}{key}: {second}\n'


def _diff_sequences(first, second, key, indent):
    shared = min(len(first), len(second))
    lines = [_diff_values(first[i], second[i], f'{key}[{i}]', indent) for i in range(shared)]
    lines += [f'>{indent}{key}[{i}]: {first[i]}\n' for i in range(shared, len(first))]
    lines += [f'<{indent}{key}[{i}]: {second[i]}\n' for i in range(shared, len(second))]
    return ''.join(lines) or f'>{indent}{key}: {first}\n<{indent}{key}: {second}\n'  # a list and a tuple of equal items
