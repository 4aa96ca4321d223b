"""The page of all error messages, read from every `raise` of the source."""

import ast
import collections
from typing import NamedTuple

import sentences
import source

_TOPICS = {
    'command_line': 'The command and its flags', 'hyperparams': 'Hyperparameters',
    'hyperparams_text': 'Text of hyperparameters',
    'base_model_params': 'Params files', 'model_registry': 'Names of models', 'input': 'Data', 'layers': 'Layers',
    'schedules': 'Schedules', 'partition': 'Where the cut falls', 'stages': 'Losses, micro-batches and partitions',
    'pipeline': 'GPipeLayer', 'keras_graph': 'Keras models and KerasHub', 'models': 'Tasks, metrics and PipelineModel',
    'optimizers': 'Optimizers and learning rates', 'training': 'Training, checkpoints and evaluation',
    'planner': 'Plans', 'devices': 'Devices', 'placements': 'Placements: hosts, workers, servers, TPUs',
    'spmd': 'One program for all cores of a TPU', 'cluster': 'Processes of a cluster',
    'tools': 'Reports, traces and compiling for TPUs'}


class Error(NamedTuple):
    """What one `raise` says.

    Attributes:
        sentences: what it can say; empty where it passes another error on.
        type: name of the exception.
        module: name of the module.
        line: where it stands.
        when: the condition or the `except` that encloses it, as source; '' where there is none.
    """
    sentences: tuple[str, ...]
    type: str
    module: str
    line: int
    when: str


def errors() -> list[Error]:
    """Return what every `raise` of LingPipe says, but for those that raise what they caught."""
    return [error for module in source.modules().values() for node, around in module.enclosed()
            if isinstance(node, ast.Raise) and node.exc for error in _errors_of(node, around, module)]


def _errors_of(node, around, module):
    function = next((each for each in reversed(around) if isinstance(each, ast.FunctionDef)), None)
    when = _condition(node, around)
    return [Error(tuple(texts), name, module.name, node.lineno, when)
            for name, texts in _raised(node.exc, module, function)]


def _raised(exception, module, function):
    """Return pairs of the type of an exception and the sentences that it can have."""
    if isinstance(exception, ast.IfExp):
        return [pair for branch in (exception.body, exception.orelse) for pair in _raised(branch, module, function)]
    if not isinstance(exception, ast.Call):  # a class alone, or an exception that came from elsewhere
        return [(ast.unparse(exception), [])]
    name = ast.unparse(exception.func)
    maker = module.functions.get(name.rpartition('.')[2])
    if maker and maker is not function:
        return [pair for each in ast.walk(maker) if isinstance(each, ast.Return) and each.value
                for pair in _raised(each.value, module, maker)]
    texts = sentences.of(exception.args[0], module, function) if exception.args else []
    return [(name.rpartition('.')[2], texts)]


def _condition(node, around):
    """Return what must hold for the innermost `if` or `except` around a node."""
    inside = node
    for outer in reversed(around):
        if isinstance(outer, ast.If):
            condition = ast.unparse(outer.test)
            return condition if inside in outer.body else f'not ({condition})'
        if isinstance(outer, ast.ExceptHandler):
            return f'{ast.unparse(outer.type)} was caught' if outer.type else 'any error was caught'
        if isinstance(outer, ast.FunctionDef):
            return ''
        inside = outer
    return ''


def text() -> str:
    """Return the page, in Markdown."""
    by_topic = collections.defaultdict(list)
    for error in errors():
        by_topic[_topic(error.module)].append(error)
    order = [*_TOPICS.values(), *sorted(set(by_topic) - set(_TOPICS.values()))]
    sections = [f'## {topic}\n\n' + '\n'.join(map(_entry, by_topic[topic])) for topic in order if by_topic[topic]]
    return _HEAD + '\n\n'.join(sections) + '\n'


def _topic(module):
    part = module.removeprefix('lingpipe').strip('.').partition('.')[0]
    return _TOPICS.get(part, 'Others')


def _entry(error):
    said = [f'- {source.code(sentence)}' for sentence in error.sentences] or ['- *(passes another error on)*']
    when = f', when {source.code(error.when)}' if error.when else ''
    return '\n'.join(said) + f'\n\n    `{error.type}` of `{error.module}`{when}\n'


_HEAD = '''# Every error message

This page is read from the source, so that no message is missing. What varies stands in {braces}. Below each message
stand the type of the exception, its module, and the condition under which it is raised. Search for a few words of your
message that are no names or numbers. [Troubleshooting](../troubleshooting.md) starts from what you see instead.

'''
