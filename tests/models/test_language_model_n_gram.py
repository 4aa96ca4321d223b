import collections

import numpy as np
import pytest

from lingpipe.models import language_model


def slow_probability(training, order, vocab_size, history, word):
    """Interpolated Kneser-Ney from its definition, with runs of tokens in dictionaries."""
    return _interpolated(training, order, order, vocab_size, history, word)


def _interpolated(training, order, highest, vocab_size, history, word):
    if order == 0:
        return 1 / vocab_size
    runs = [tuple(training[i:i + order]) for i in range(len(training) - order + 1)]
    counts = collections.Counter(runs)
    if order < highest:
        before = collections.defaultdict(set)
        for i, run in enumerate(runs):
            if i:
                before[run].add(training[i - 1])
        counts = {run: max(1, len(before[run])) for run in counts}
    discount_of = collections.Counter(counts.values())
    discount = (discount_of[1] + 0.5) / (discount_of[1] + 2 * discount_of[2] + 1)
    history = tuple(history[len(history) - order + 1:]) if order > 1 else ()
    following = {run[-1]: count for run, count in counts.items() if run[:-1] == history}
    shorter = _interpolated(training, order - 1, highest, vocab_size, history[1:], word)
    if not following:
        return shorter
    total = sum(following.values())
    return max(following.get(word, 0) - discount, 0) / total + discount * len(following) / total * shorter


@pytest.mark.parametrize('order', [1, 2, 3, 4])
def test_probabilities_are_those_of_the_definition(order):
    rng = np.random.default_rng(order)
    training, text = rng.choice(4, 60, p=[0.5, 0.3, 0.15, 0.05]).tolist(), rng.integers(0, 5, 40).tolist()
    bits = language_model.NGramModel(np.array(training), order, 5).bits(np.array(text))
    expected = [slow_probability(training, min(order, i + 1), 5, text[:i], text[i]) for i in range(order - 1, 40)]
    np.testing.assert_allclose(bits[order - 1:], -np.log2(expected), rtol=1e-9)


def test_an_order_that_no_number_can_hold_is_refused():
    with pytest.raises(ValueError, match='order=8 is too large for runs of tokens below 256'):
        language_model.NGramModel(np.arange(9), 8, 256)
