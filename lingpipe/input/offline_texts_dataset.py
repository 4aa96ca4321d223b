"""TFDS datasets that need no network: Python's help topics, and spoken numbers."""

import hashlib
import sys
from collections.abc import Mapping

import tensorflow_datasets as tfds

_PYDOC_TOPICS = """\
The topics that `help()` of the Python interpreter shows (module `pydoc_data.topics`): about 80 chapters of the language
reference and the library reference as plain text, 0.4 to 0.7 MB, so preparing them needs no network.

The split is by document, by the first byte of the SHA-256 of its name. A topic is in 'test' if the byte is divisible by
8, and in 'dev' (for choices, so that the test is for the final figure alone) if it leaves 9 when divided by 16. Both
have about 20 KB. Many topics quote each other, so 'dev' drops every paragraph that is also in 'train', however
indented, and 'test' drops every paragraph that is in either. The text depends on the Python version, so results are
comparable within one configuration only.
"""

_PYTHON = f'python{sys.version_info.major}_{sys.version_info.minor}'
_SPOKEN_NUMBERS = """\
Whole numbers below a million, as 'four hundred and seven thousand and twelve' and as '407012': all numbers of up to
three digits, and of each greater length 8,000 with at most one zero and 8,000 (or, if there are fewer, all) with more
of them, which would be rare otherwise.

Which numbers of a length are drawn, and which of them are 'test' (one in 32), depends on the SHA-256 of their digits
alone: no number is in both splits.
"""

_NUM_DIGITS = 6
_NUM_OF_A_KIND = 8_000
_TEST_DIVISOR = 32

_SMALL = ('zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen '
          'seventeen eighteen nineteen').split()
_TENS = 'twenty thirty forty fifty sixty seventy eighty ninety'.split()


class PydocTopics(tfds.core.GeneratorBasedBuilder):
    """Builder of the TFDS dataset 'pydoc_topics'. Importing this module registers the dataset."""

    name = 'pydoc_topics'
    VERSION = tfds.core.Version('1.1.0')
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=_PYTHON, description=f'As in {_PYTHON.replace("_", ".")}.')]
    url_infos = None  # Nothing is downloaded, so TFDS does not have to look for checksums.

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description=_PYDOC_TOPICS,
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
    """Split documents {name: text} into 'train', 'dev' and 'test' by the hash of their names.

    'dev' drops every paragraph that is also in 'train'. 'test' drops every paragraph that is also in 'train' or 'dev'.
    A document that loses all its paragraphs is left out.
    """
    splits: dict[str, dict[str, str]] = {'train': {}, 'dev': {}, 'test': {}}
    for name in sorted(texts, key=_digest):
        splits[_split_of(name)][name] = texts[name]
    known = _all_words(splits['train'])
    return {'train': splits['train'], 'dev': _without(known, splits['dev']),
            'test': _without(known | _all_words(splits['dev']), splits['test'])}


def _split_of(name):
    byte = _digest(name)[0]
    if byte % 8 == 0:
        return 'test'
    return 'dev' if byte % 16 == 9 else 'train'


def _without(known, texts):
    kept = {name: [paragraph for paragraph in _paragraphs(text) if _words(paragraph) not in known]
            for name, text in texts.items()}
    return {name: '\n\n'.join(paragraphs) + '\n' for name, paragraphs in kept.items() if paragraphs}


def _all_words(texts):
    return {_words(paragraph) for text in texts.values() for paragraph in _paragraphs(text)}


def _digest(value):
    return hashlib.sha256(str(value).encode()).digest()


def _paragraphs(text):
    return [paragraph.strip('\n') for paragraph in text.split('\n\n') if paragraph.strip()]


def _words(paragraph):
    """Return the words of a paragraph, independent of line breaks and indentation."""
    return tuple(paragraph.split())


class SpokenNumbers(tfds.core.GeneratorBasedBuilder):
    """Builder of the TFDS dataset 'spoken_numbers'. Importing this module registers the dataset."""

    name = 'spoken_numbers'
    VERSION = tfds.core.Version('1.0.0')
    url_infos = None  # Nothing is downloaded, so TFDS does not have to look for checksums.

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description=_SPOKEN_NUMBERS,
            features=tfds.features.Translation(languages=('words', 'digits')),
            supervised_keys=('words', 'digits'),
        )

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(numbers) for split, numbers in split_numbers().items()}

    def _generate_examples(self, numbers):
        for number in numbers:
            yield number, {'words': spoken(number), 'digits': str(number)}


def spoken(number: int) -> str:
    """Return a number from 0 to 999,999 in British English words, such as 'one hundred and one'."""
    if number >= 1000:
        thousands, rest = divmod(number, 1000)
        joint = ' and ' if 0 < rest < 100 else ' ' if rest else ''
        return f'{spoken(thousands)} thousand{joint}{spoken(rest) if rest else ""}'
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return f'{_SMALL[hundreds]} hundred' + (f' and {spoken(rest)}' if rest else '')
    if number >= 20:
        tens, rest = divmod(number, 10)
        return _TENS[tens - 2] + (f'-{_SMALL[rest]}' if rest else '')
    return _SMALL[number]


def split_numbers() -> dict[str, list[int]]:
    """Return the numbers in the splits 'train' and 'test'."""
    drawn = []
    for length in range(1, _NUM_DIGITS + 1):
        numbers = range(10**(length - 1) if length > 1 else 0, 10**length)
        for has_zeros in (False, True):
            of_a_kind = [number for number in numbers if (str(number).count('0') > 1) == has_zeros]
            drawn += sorted(of_a_kind, key=_digest)[:_NUM_OF_A_KIND]
    drawn.sort(key=_digest)
    is_test = [_digest(number)[-1] % _TEST_DIVISOR == 0 for number in drawn]
    return {'train': [number for number, test in zip(drawn, is_test) if not test],
            'test': [number for number, test in zip(drawn, is_test) if test]}
