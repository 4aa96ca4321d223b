"""Numbers in English words and in digits as a TFDS dataset: a translation task that needs no network."""

import hashlib

import tensorflow_datasets as tfds

_DESCRIPTION = """\
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


class SpokenNumbers(tfds.core.GeneratorBasedBuilder):
    """Builder of the TFDS dataset 'spoken_numbers'; importing this module registers it."""

    name = 'spoken_numbers'
    VERSION = tfds.core.Version('1.0.0')
    url_infos = None  # Nothing is downloaded, so TFDS does not have to look for checksums.

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.Translation(languages=('words', 'digits')),
            supervised_keys=('words', 'digits'),
        )

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(numbers) for split, numbers in split_numbers().items()}

    def _generate_examples(self, numbers):
        for number in numbers:
            yield number, {'words': spoken(number), 'digits': str(number)}


def spoken(number: int) -> str:
    """Return a whole number from 0 to 999,999 in English words, British style: with 'and' before tens and units."""
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
    """Draw the numbers of {'train', 'test'}, always the same ones, in the order of their hashes."""
    drawn = []
    for length in range(1, _NUM_DIGITS + 1):
        numbers = range(10**(length - 1) if length > 1 else 0, 10**length)
        for has_zeros in (False, True):
            of_a_kind = [number for number in numbers if (str(number).count('0') > 1) == has_zeros]
            drawn += sorted(of_a_kind, key=_hash)[:_NUM_OF_A_KIND]
    drawn.sort(key=_hash)
    is_test = [_hash(number)[-1] % _TEST_DIVISOR == 0 for number in drawn]
    return {'train': [number for number, test in zip(drawn, is_test) if not test],
            'test': [number for number, test in zip(drawn, is_test) if test]}


def _hash(number):
    return hashlib.sha256(str(number).encode()).digest()
