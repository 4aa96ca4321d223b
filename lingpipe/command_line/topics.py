"""The help of the command: its modes, and its flags by topic."""

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags

_HELP = ('--help', '-h', '-help', '--helpfull', '--helpshort')
_WIDTH = 100
_MARGIN = 22
MODES = {
    'train': 'trains, and evaluates during and after training; resumes from the newest checkpoint of --logdir',
    'eval': 'evaluates the newest checkpoint, the one of --checkpoint, or with --follow new ones as they come',
    'trace': 'runs --steps training steps and shows where their time went: a picture, a table, advice',
    'report': 'writes one page about a run, report.html: curves, partitions, memory, timeline, samples, configuration',
    'export': 'writes a checkpoint as one plain Keras file and as a SavedModel',
    'generate': 'prints the continuation of --prompt by a language model, or its translation by a translation model',
    'predict': 'classifies the images or texts of --input, and writes a line of JSON for each to --output',
    'inspect_params': 'prints every hyperparameter, as text that can be read again',
    'inspect_model': 'prints every layer with its shape, parameters, FLOPs, partition and device; allocates nothing',
    'plan': "shows what fits on which devices and how fast it is, and chooses what is 'auto'",
    'list': 'prints all models'}
TOOLS = {
    'new': 'writes a params file to start from, in the current folder: `new my_model`',
    'doctor': 'says what this machine has, what would be used of it, and what is wrong',
    'local_cluster': 'runs all processes of a cluster on this machine: `local_cluster --workers=2 -- lingpipe ...`'}


class Topic(NamedTuple):
    """Flags that belong together."""
    title: str
    modes: tuple[str, ...]  # the modes that accept them; empty: all
    names: tuple[str, ...]


TOPICS = (
    Topic('What to run', (), ('model', 'mode', 'logdir', 'model_params_override', 'model_params_file_override')),
    Topic('Where to run', (), ('device', 'tpu')),
    Topic('Checkpoints', ('eval', 'export', 'generate', 'predict'), ('checkpoint',)),
    Topic('Evaluating', ('eval',), ('follow',)),
    Topic('Training', ('train',), ('dry_run', 'step_timeout_seconds')),
    Topic('Many machines', ('train', 'trace'), (
        'cluster', 'cluster_spec', 'trusted_network', 'task', 'ps', 'update', 'replace_after_seconds')),
    Topic('Tracing', ('trace',), ('steps',)),
    Topic('Planning', ('plan',), ('accelerator', 'device_memory', 'num_devices', 'compile', 'tpu_topology')),
    Topic('Predicting', ('predict',), ('input', 'output')),
    Topic('Generating text', ('generate',), (
        'prompt', 'prompt_file', 'num_tokens', 'temperature', 'top_k', 'top_p', 'seed')),
)


def program() -> str:
    """Return the command as the user typed it, without arguments."""
    name = os.path.basename(sys.argv[0])
    return {'__main__.py': 'python -m lingpipe', 'run.py': 'python run.py'}.get(name, 'lingpipe')


def is_asked_for(words: Sequence[str]) -> bool:
    """Return whether `words` are empty or ask for help."""
    is_named = 'help' in words[:2] and not words[0].startswith('-')  # elsewhere it is a value, such as a prompt
    return not words or is_named or any(word in _HELP for word in words)


def text(words: Sequence[str]) -> str:
    """Return the help of the mode or tool in `words`, or of all modes and tools."""
    if words and words[0] in TOOLS:
        return _row(words[0], TOOLS[words[0]])
    given = [word.removeprefix('--mode=') for word in words]
    mode = next((name for name in given if name in MODES), None)
    topics = [topic for topic in TOPICS if mode is None or not topic.modes or mode in topic.modes]
    return '\n\n'.join([_usage(mode), *map(_text_of, topics)])


def _usage(mode):
    if mode:
        return f'{program()} {mode} --model=MODULE [--flag=value ...]\n\n' + _row(mode, MODES[mode])
    rows = [_row(name, purpose) for name, purpose in (MODES | TOOLS).items()]
    return '\n'.join([
        f'{program()} MODE --model=MODULE [--flag=value ...]', '',
        'Pipeline-parallel training in TensorFlow and Keras.',
        f'`{program()} MODE --help` shows the flags of a mode.', '',
        *rows])


def _text_of(topic):
    rows = [_row(f'--{name}', _help_of(flags.FLAGS[name])) for name in topic.names]
    modes = f' (--mode={", ".join(topic.modes)})' if topic.modes else ''
    return '\n'.join([f'{topic.title}{modes}:', *rows])


def _help_of(flag):
    default = f' Default: {flag.default}.' if flag.default not in (None, '', False, []) else ''
    words = ' '.join(flag.help.split()).removesuffix('.') + '.'
    if getattr(flag.parser, 'enum_values', None):  # absl joins them to one long word
        words = words.replace('|', ' | ', len(flag.parser.enum_values) - 1)
    return words + default


def _row(name, words):
    """Return the help of a flag or mode as indented lines."""
    lines = textwrap.wrap(words, _WIDTH - _MARGIN)
    first = f'  {name}'.ljust(_MARGIN)
    head = [first + lines.pop(0)] if len(first) == _MARGIN else [first]  # a long name has a line of its own
    return '\n'.join(head + [' ' * _MARGIN + line for line in lines])
