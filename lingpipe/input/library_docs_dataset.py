"""Paragraphs of the documentation of four libraries as a TFDS dataset: labelled English that needs no network."""

import ast
import collections
import importlib.util
import inspect
import itertools
import pathlib
import sys
import sysconfig
import warnings

import keras
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from lingpipe.input import pydoc_topics_dataset

_LABELS = ['keras', 'numpy', 'python', 'tensorflow']
_FOLDERS = {'keras': ['src/layers', 'src/ops'], 'numpy': ['_core', 'lib', 'linalg'], 'tensorflow': ['python/ops']}
_SHORTEST, _LONGEST = 80, 600
_LARGEST_CLASS = {'train': 2000, 'dev': 300, 'test': 300}

_DESCRIPTION = """\
Paragraphs of 80 to 600 characters of the docstrings of installed libraries, of which the class is to be told: the
standard library of Python (its modules that are one file), NumPy, Keras (layers and operations) and TensorFlow
(operations). They are read from the sources, so preparing them needs no network.

The split is by source file, as 'pydoc_topics' splits documents: of the files in 'dev' every paragraph is dropped that
also stands in 'train', and of those in 'test' every one that stands in either. A class has at most 2,000 paragraphs in
'train', and 300 in 'dev' and 'test', those of the first files by the hash of their names. The text belongs to the
versions of the libraries: results compare within one configuration only.
"""


def _config_name():
    versions = {'keras': keras.__version__, 'numpy': np.__version__, 'tensorflow': tf.__version__}
    python = f'{sys.version_info.major}.{sys.version_info.minor}'
    return '_'.join(f'{name}{version}' for name, version in {'python': python, **versions}.items())


class LibraryDocs(tfds.core.GeneratorBasedBuilder):
    """Builder of the TFDS dataset 'library_docs'; importing this module registers it."""

    name = 'library_docs'
    VERSION = tfds.core.Version('1.0.0')
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=_config_name(), description='Of these versions.')]
    url_infos = None  # Nothing is downloaded, so TFDS does not have to look for checksums.

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(
                {'text': tfds.features.Text(), 'label': tfds.features.ClassLabel(names=_LABELS)}),
            supervised_keys=('text', 'label'),
            license='Python Software Foundation License Version 2, BSD 3-Clause, Apache 2.0',
        )

    def _split_generators(self, dl_manager):
        texts = {f'{label}/{name}': text for label in _LABELS for name, text in _documents(label)}
        splits = pydoc_topics_dataset.split_by_document(texts)
        return {split: self._generate_examples(documents, _LARGEST_CLASS[split]) for split, documents in splits.items()}

    def _generate_examples(self, documents, largest_class):
        counts = collections.Counter()
        for name, text in documents.items():
            label = name.partition('/')[0]
            paragraphs = text.split('\n\n')[:largest_class - counts[label]]
            counts[label] += len(paragraphs)
            for number, paragraph in enumerate(paragraphs):
                yield f'{name}/{number}', {'text': paragraph.strip(), 'label': label}


def _documents(label):
    """Yields the name of each source file that has paragraphs, and the paragraphs."""
    known = set()
    for name, path in _sources(label):
        paragraphs = [paragraph for paragraph in _paragraphs(path) if paragraph not in known]
        known.update(paragraphs)
        if paragraphs:
            yield name, '\n\n'.join(dict.fromkeys(paragraphs))


def _sources(label):
    if label == 'python':
        folder = pathlib.Path(sysconfig.get_paths()['stdlib'])
        paths = folder.glob('*.py')
    else:
        folder = pathlib.Path(importlib.util.find_spec(label).submodule_search_locations[0])
        paths = itertools.chain.from_iterable((folder / each).rglob('*.py') for each in _FOLDERS[label])
    return sorted((path.relative_to(folder).as_posix(), path) for path in paths if 'test' not in path.name)


def _paragraphs(path):
    """Returns the paragraphs of all docstrings of a source file that are prose."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', SyntaxWarning)
        nodes = ast.walk(ast.parse(path.read_text(encoding='utf-8')))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) or '' for node in nodes if isinstance(node, documented)]
    parts = itertools.chain.from_iterable(inspect.cleandoc(text).split('\n\n') for text in docstrings)
    prose = [part for part in parts if _SHORTEST <= len(part.strip()) <= _LONGEST and '>>>' not in part]
    return [' '.join(part.split()) for part in prose]
