"""An n-gram model of bytes or other tokens: the yardstick that a language model is to beat."""

import numpy as np


class NGramModel:
    """Counts of up to n tokens in a row, smoothed by interpolated Kneser-Ney with one discount an order.

    For a history h and its shorter form h' (Chen and Goodman 1999, "An empirical study of smoothing techniques for language
    modeling", section 2.7)::

        p(w | h) = max(c(h w) - D, 0) / c(h) + D N(h) / c(h) p(w | h')    D = (n1 + 1/2) / (n1 + 2 n2 + 1)

    c counts occurrences for the longest histories, and the different tokens that stand before for shorter ones; N(h) is the
    number of different tokens after h, n1 and n2 how many c are 1 and 2 (the 1/2 keeps something for the unseen where n1 is 0).
    The shortest history leads to equal probabilities.

    Args:
        tokens: integer array `[length]` to learn from.
        order: n, the longest run that is counted.
        vocab_size: number of different tokens.
    """

    def __init__(self, tokens, order, vocab_size):
        if vocab_size ** order >= 2 ** 63:
            raise ValueError(f'order={order} is too large for runs of tokens below {vocab_size}. Choose a smaller order.')
        self._vocab_size = vocab_size
        runs = [_counts(self._codes(tokens, length)) for length in range(1, order + 1)]
        self._levels = [
            _Level(codes, counts if length == order else self._continuations(runs[length][0], length, codes), vocab_size)
            for length, (codes, counts) in enumerate(runs, 1)]

    def bits(self, tokens):
        """Returns -log2 p of every token after those before it, float64 `[length]`."""
        probabilities = np.full(len(tokens), 1 / self._vocab_size)
        for length, level in enumerate(self._levels, 1):
            longer = level.interpolate(self._codes(tokens, length), probabilities[length - 1:])
            probabilities = np.concatenate([probabilities[:length - 1], longer])
        return -np.log2(probabilities)

    def _codes(self, tokens, length):
        """Returns one number for each run of `length` tokens, by the place of its last."""
        windows = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens, np.int64), length)
        return windows @ (np.int64(self._vocab_size) ** np.arange(length - 1, -1, -1))

    def _continuations(self, longer_codes, length, codes):
        """Returns how many different tokens stand before each run; the one at the very start counts as after one."""
        found, counts = _counts(longer_codes % self._vocab_size ** length)
        return np.maximum(1, _look_up(found, counts, codes))


class _Level:
    """The runs of one length.

    Args:
        codes: array `[count]`, ascending, of all runs.
        counts: array `[count]`, c.
        vocab_size: number of different tokens.
    """

    def __init__(self, codes, counts, vocab_size):
        self._codes, self._counts, self._vocab_size = codes, counts, vocab_size
        ones, twos = (counts == 1).sum(), (counts == 2).sum()
        self._discount = (ones + 0.5) / (ones + 2 * twos + 1)
        self._histories, start = np.unique(codes // vocab_size, return_index=True)
        self._totals = np.add.reduceat(counts, start)
        self._followers = np.diff(start, append=len(codes))

    def interpolate(self, codes, shorter):
        """Returns p of the last token of each run; `shorter` holds p from the shorter history."""
        histories = codes // self._vocab_size
        totals = _look_up(self._histories, self._totals, histories)
        followers = _look_up(self._histories, self._followers, histories)
        counts = _look_up(self._codes, self._counts, codes)
        seen = np.maximum(counts - self._discount, 0) + self._discount * followers * shorter
        return np.where(totals > 0, seen / np.maximum(totals, 1), shorter)


def _counts(codes):
    return np.unique(codes, return_counts=True)


def _look_up(codes, values, wanted):
    """Returns the values of the wanted codes, 0 where there is none; `codes` ascend."""
    places = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    return np.where(codes[places] == wanted, values[places], 0)
