import importlib.metadata
import sys

import tensorflow as tf

from lingpipe.input import library_docs_dataset, text_records


def records(split):
    rows = text_records.from_tfds('library_docs', split, None, ['text', 'label'])
    return [(record.fields['text'], record.fields['label']) for record in rows]


def test_splits_share_no_paragraph_and_have_all_classes():
    train, dev, test = ({tuple(text.split()) for text, _ in records(split)} for split in ('train', 'dev', 'test'))
    assert not train & dev and not train & test and not dev & test
    for split, most in (('train', 2000), ('dev', 300), ('test', 300)):
        labels = [label for _, label in records(split)]
        counts = {label: labels.count(label) for label in labels}
        assert sorted(counts) == ['keras', 'numpy', 'python', 'tensorflow']
        assert max(counts.values()) <= most and min(counts.values()) > most / 20


def test_docstrings_are_read_without_their_code(tmp_path):
    path = tmp_path / 'module.py'
    words = 'A paragraph of some words that is long enough, and goes on over\n    a second line of it.'
    path.write_text(f'def f():\n    """Short.\n\n    {words}\n\n    >>> {"f() " * 40}\n    """\n\n"""{words}"""\n')
    assert library_docs_dataset._paragraphs(path) == [' '.join(words.split())]


def test_the_configuration_needs_no_package_of_the_name_tensorflow(monkeypatch):
    """tensorflow-tpu and tensorflow-cpu have no metadata of a package 'tensorflow'."""
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    config, = library_docs_dataset.LibraryDocs.BUILDER_CONFIGS
    monkeypatch.setattr(importlib.metadata, 'version', version)
    assert library_docs_dataset._config_name() == config.name
    assert config.name.startswith(f'python3.{sys.version_info.minor}_keras')
    assert config.name.endswith(f'_tensorflow{tf.__version__}')
