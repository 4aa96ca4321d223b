"""Reference pages: the command's modes and flags, and the fields of all Params."""

import ast
from typing import NamedTuple

import sentences
import source
from absl import flags

from lingpipe import schedules
from lingpipe.command_line import run_flags, topics  # noqa: F401 - run_flags defines the flags

_REGISTERED = {'schedules.SCHEDULES': [repr(name) for name in sorted(schedules.SCHEDULES)]}  # by decorators
_TYPES = {bool: 'bool', int: 'int', float: 'float', str: 'text', type(None): ''}


class Field(NamedTuple):
    """A field of Params: its name, its default as source, the type of that, and what it is for."""
    name: str
    default: str
    type: str
    description: str


class Owner(NamedTuple):
    """A class or function whose Params have fields.

    Attributes:
        name: such as 'GPipeLayer'.
        module: name of its module.
        purpose: first line of its docstring.
        bases: names of the classes whose fields it has too.
        fields: its own `Field`s.
    """
    name: str
    module: str
    purpose: str
    bases: tuple[str, ...]
    fields: tuple[Field, ...]


def flags_text() -> str:
    """Return the page of modes and flags, in Markdown."""
    modes = [f'| `{mode}` | {source.table_cell(purpose)} |' for mode, purpose in topics.MODES.items()]
    parts = [_FLAGS_HEAD, '| mode | does |\n|---|---|', *modes, '| `new` | writes a params file to start from |', '']
    for topic in topics.TOPICS:
        where = ', '.join(f'`{mode}`' for mode in topic.modes) or 'all'
        parts += ['', f'## {topic.title}', '', f'Modes: {where}.', '', '| flag | type | default | what it is |',
                  '|---|---|---|---|', *[_flag_row(flags.FLAGS[name]) for name in topic.names]]
    return '\n'.join(parts) + '\n'


def _flag_row(flag):
    choices = getattr(flag.parser, 'enum_values', None)
    kind = 'one of ' + ', '.join(choices) if choices else {'string': 'text'}.get(flag.flag_type(), flag.flag_type())
    default = '' if flag.default in (None, '') else source.code(str(flag.default))
    help_text = flag.help.partition('>: ')[2] if flag.help.startswith('<') else flag.help
    return f'| `--{flag.name}` | {source.table_cell(kind)} | {default} | {source.table_cell(help_text)} |'


def owners() -> list[Owner]:
    """Return all classes and functions of LingPipe that define fields of Params."""
    found = []
    for module in source.modules().values():
        by_owner: dict[ast.AST, list[Field]] = {}
        for node, around in module.enclosed():
            if _is_definition(node):
                function = next(each for each in reversed(around) if isinstance(each, ast.FunctionDef))
                owner = next((each for each in reversed(around) if isinstance(each, ast.ClassDef)), function)
                by_owner.setdefault(owner, []).append(_field(node, module, function))
        found += [_owner(node, module, fields) for node, fields in by_owner.items()]
    return found


def _is_definition(node):
    return (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == 'Define'
            and len(node.args) == 3 and isinstance(node.args[0], ast.Constant))


def _field(call, module, function):
    name, default, description = call.args
    value = module.value_of(default)
    shown = value if isinstance(value, ast.Constant) else default
    kind = _TYPES.get(type(shown.value), '') if isinstance(shown, ast.Constant) else _kind_of(shown)
    return Field(name.value, ast.unparse(shown), kind, _description(description, module, function))


def _kind_of(node):
    kinds = {ast.List: 'list', ast.Dict: 'dict', ast.Tuple: 'tuple', ast.Call: 'Params'}
    return kinds.get(type(node), '')


def _description(node, module, function):
    """A description says what constants it names hold."""
    if isinstance(node, ast.JoinedStr):
        values = [_value_in_words(part, module) for part in node.values]
        return ''.join(values)
    return sentences.of(node, module, function)[0]


def _value_in_words(part, module):
    if isinstance(part, ast.Constant):
        return part.value
    node = part.value.args[0] if isinstance(part.value, ast.Call) and part.value.args else part.value  # sorted(NAMES)
    value = module.value_of(node)
    choices = _REGISTERED.get(ast.unparse(node)) or module.choices(node)
    return ', '.join(choices) or ast.unparse(value if isinstance(value, ast.Constant) else node)


def _owner(node, module, fields):
    bases = [ast.unparse(base).rpartition('.')[2] for base in getattr(node, 'bases', [])]
    purpose = (ast.get_docstring(node) or module.title).split('\n\n')[0]
    return Owner(node.name, module.name, ' '.join(purpose.split()), tuple(bases), tuple(fields))


def params_text() -> str:
    """Return the page of all fields of Params, in Markdown."""
    found = sorted(owners(), key=lambda owner: owner.module)
    names = {owner.name for owner in found}
    sections = [_owner_text(owner, names) for owner in found if not owner.module.endswith('lingpipe.hyperparams')]
    return _PARAMS_HEAD + '\n'.join(sections)


def _owner_text(owner, names):
    bases = ', '.join(f'[{base}](#{base.lower()})' for base in owner.bases if base in names)
    rows = [f'| `{field.name}` | {field.type} | {source.code(field.default)} | {source.table_cell(field.description)} |'
            for field in owner.fields]
    return '\n'.join([
        f'## {owner.name} {{ #{owner.name.lower()} }}', '',
        f'`{owner.module}.{owner.name}`: {source.table_cell(owner.purpose)}', '',
        *([f'It has the fields of {bases} too.', ''] if bases else []),
        '| field | type | default | what it is |', '|---|---|---|---|', *rows, ''])


_FLAGS_HEAD = '''# Modes and flags

`lingpipe MODE --flag=value ...`, or `python run.py --mode=MODE --flag=value ...` in a clone. This page is read from the
source.
'''
_PARAMS_HEAD = '''# Params

Every field of every Params class, read from the source, with its default and the unit where it has one. A field is set
in the params file (`p.body.Set(num_partitions=2)`) or from the command line
(`--model_params_override='task.body.num_partitions=2'`); `lingpipe inspect_params --model=...` prints those of a model.

'''
