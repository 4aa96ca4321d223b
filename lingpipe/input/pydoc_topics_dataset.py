"""The help topics of the Python interpreter as a TFDS dataset: English text that every Python installation has."""

import hashlib
import sys
from collections.abc import Mapping

import tensorflow_datasets as tfds

_DESCRIPTION = """\
The topics that `help()` of the Python interpreter shows (module `pydoc_data.topics`): about 80 chapters of the language
reference and the library reference as plain text, 0.4 to 0.7 MB, so preparing them needs no network.

The split is by document, by the first byte of the SHA-256 of its name: a topic is in 'test' if that is divisible by 8,
in 'dev' (for choices, so that the test is for the final figure alone) if it leaves 9 when divided by 16, which gives
both about 20 KB. Many topics quote each other, so of the documents in 'dev' every paragraph is dropped that also stands
in 'train', however indented, and of those in 'test' every one that stands in either.
The text belongs to the Python version: results compare within one configuration only.
"""

_PYTHON = f'python{sys.version_info.major}_{sys.version_info.minor}'


class PydocTopics(tfds.core.GeneratorBasedBuilder):
    """Builder of the TFDS dataset 'pydoc_topics'; importing this module registers it."""

    name = 'pydoc_topics'
    VERSION = tfds.core.Version('1.1.0')
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=_PYTHON, description=f'As in {_PYTHON.replace("_", ".")}.')]
    url_infos = None  # Nothing is downloaded, so TFDS does not have to look for checksums.

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict({'name': tfds.features.Text(), 'text': tfds.features.Text()}),
            homepage='https://docs.python.org/3/library/pydoc.html',
            license='Python Software Foundation License Version 2',
        )

    def _split_generators(self, dl_manager):
        from pydoc_data import topics

        return {split: self._generate_examples(texts) for split, texts in split_by_document(topics.topics).items()}

    def _generate_examples(self, texts):
        for name, text in texts.items():
            yield name, {'name': name, 'text': text}


def split_by_document(texts: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Split documents {name: text} by the hash of their names into {'train', 'dev', 'test'}, in the hashes' order.

    Text of earlier splits is dropped from dev and test, as are documents that this leaves empty.
    """
    splits: dict[str, dict[str, str]] = {'train': {}, 'dev': {}, 'test': {}}
    for name in sorted(texts, key=_hash):
        splits[_split_of(name)][name] = texts[name]
    known = _all_words(splits['train'])
    return {'train': splits['train'], 'dev': _without(known, splits['dev']),
            'test': _without(known | _all_words(splits['dev']), splits['test'])}


def _split_of(name):
    byte = _hash(name)[0]
    if byte % 8 == 0:
        return 'test'
    return 'dev' if byte % 16 == 9 else 'train'


def _without(known, texts):
    kept = {name: [paragraph for paragraph in _paragraphs(text) if _words(paragraph) not in known]
            for name, text in texts.items()}
    return {name: '\n\n'.join(paragraphs) + '\n' for name, paragraphs in kept.items() if paragraphs}


def _all_words(texts):
    return {_words(paragraph) for text in texts.values() for paragraph in _paragraphs(text)}


def _hash(name):
    return hashlib.sha256(name.encode()).digest()


def _paragraphs(text):
    return [paragraph.strip('\n') for paragraph in text.split('\n\n') if paragraph.strip()]


def _words(paragraph):
    """Return the words of a paragraph, independent of line breaks and indentation."""
    return tuple(paragraph.split())
