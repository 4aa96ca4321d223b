"""Statements of Python's standard library, each token with its part, as a TFDS dataset that needs no network."""

import keyword
import pathlib
import sys
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence

import tensorflow_datasets as tfds

from lingpipe.input import pydoc_topics_dataset

_LABELS = ['argument', 'attribute', 'call', 'definition', 'keyword', 'name', 'number', 'operator', 'string']
_PACKAGES = ['asyncio', 'email', 'http', 'json', 'logging', 'unittest']
_KEPT = (tokenize.NAME, tokenize.NUMBER, tokenize.OP, tokenize.STRING)
_LEFT_OUT = (tokenize.COMMENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.INDENT, tokenize.NL)
_FEWEST, _MOST = 4, 40
_LARGEST_SPLIT = {'train': 4000, 'dev': 400, 'test': 400}

_DESCRIPTION = f"""\
Statements of {_FEWEST} to {_MOST} tokens, as the module `tokenize` cuts the sources of {', '.join(_PACKAGES)}, and for
each token what it is: a keyword, number, operator or string, or a name, of which a rule tells by the tokens beside it
whether it is defined, called, an attribute, or a named argument of a call. Statements with a string that holds spaces
are left out.

The split is by source file, as 'pydoc_topics' splits documents: of the files in 'dev' every statement is dropped that
also stands in 'train', and of those in 'test' every one that stands in either. The code belongs to the Python version:
results compare within one configuration only.
"""

_PYTHON = f'python{sys.version_info.major}_{sys.version_info.minor}'


class PythonTokens(tfds.core.GeneratorBasedBuilder):
    """Builder of the TFDS dataset 'python_tokens'; importing this module registers it."""

    name = 'python_tokens'
    VERSION = tfds.core.Version('1.0.0')
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=_PYTHON, description=f'Of {_PYTHON.replace("_", ".")}.')]
    url_infos = None  # Nothing is downloaded, so TFDS does not have to look for checksums.

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict({
                'text': tfds.features.Text(), 'tokens': tfds.features.Sequence(tfds.features.Text()),
                'labels': tfds.features.Sequence(tfds.features.ClassLabel(names=_LABELS))}),
            license='Python Software Foundation License Version 2',
        )

    def _split_generators(self, dl_manager):
        splits = pydoc_topics_dataset.split_by_document(dict(_documents()))
        return {split: self._generate_examples(documents, _LARGEST_SPLIT[split])
                for split, documents in splits.items()}

    def _generate_examples(self, documents, largest):
        statements = [statement.strip() for text in documents.values() for statement in text.split('\n\n')]
        for number, statement in enumerate(statements[:largest]):
            tokens = statement.split(' ')
            yield number, {'text': statement, 'tokens': tokens, 'labels': labels_of(tokens)}


def labels_of(tokens: Sequence[str]) -> list[str]:
    """Returns the class of each token of a statement.

    Args:
        tokens: strings, as `tokenize` cuts them.
    """
    around = ['', *tokens, '']
    return [_label(*around[place:place + 3]) for place in range(len(tokens))]


def _label(before, token, after):
    if keyword.iskeyword(token):
        return 'keyword'
    if token.isidentifier():
        return _kind_of_name(before, after)
    if token[0].isdigit() or token[0] == '.' and token[1:2].isdigit():
        return 'number'
    return 'string' if token[-1] in '\'"' else 'operator'


def _kind_of_name(before, after):
    if before in ('def', 'class'):
        return 'definition'
    if after == '(':
        return 'call'
    if before == '.':
        return 'attribute'
    return 'argument' if before in ('(', ',') and after == '=' else 'name'


def _documents():
    """Yields the name of each source file, and its statements as paragraphs; no statement occurs twice."""
    folder, known = pathlib.Path(sysconfig.get_paths()['stdlib']), set()
    for path in sorted(path for package in _PACKAGES for path in (folder / package).glob('*.py')):
        statements = [statement for statement in dict.fromkeys(_statements(path)) if statement not in known]
        known.update(statements)
        if statements:
            yield path.relative_to(folder).as_posix(), '\n\n'.join(statements)


def _statements(path: pathlib.Path) -> Iterator[str]:
    """Yields the statements of a source file, with a space between their tokens."""
    tokens: list[tokenize.TokenInfo] = []
    with path.open('rb') as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.NEWLINE:
                if _is_suitable(tokens):
                    yield ' '.join(token.string for token in tokens)
                tokens = []
            elif token.type not in _LEFT_OUT:
                tokens.append(token)


def _is_suitable(tokens):
    """Returns whether a statement is used; formatted strings are not, as their tokens differ from Python 3.12 on."""
    return _FEWEST <= len(tokens) <= _MOST and all(
        token.type in _KEPT and token.string.split() == [token.string] for token in tokens)
