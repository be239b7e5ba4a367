"""NumPy's SeedSequence for many seeds at once.

A SeedSequence of a client takes some ten microseconds, and a round of a large cohort asks for hundreds of them. The
numbers here are those of `SeedSequence(words).generate_state(1, uint64)`, for all rows of a matrix of words in the time
of one.
"""

import numpy as np
import numpy.typing as npt

POOL = 4
SHIFT = np.uint32(16)
INTO, INTO_TIMES = 0x43B0D7E5, 0x931E8875
OUT_OF, OUT_TIMES = 0x8B51F9DD, 0x58F38DED
LEFT, RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)

Words = npt.NDArray[np.uint32]


def numbers_of(words: Words) -> npt.NDArray[np.uint64]:
    """(n,) numbers of 64 bits; words: (n, w) of 32 bits, each row the entropy of a SeedSequence."""
    hashed = _Hash(INTO, INTO_TIMES)
    entropy = list(words.T)
    first = entropy + [np.zeros_like(words[:, 0])] * (POOL - len(entropy))
    pool = [hashed(word) for word in first[:POOL]]
    for source in range(POOL):
        for to in range(POOL):
            if source != to:
                pool[to] = _mix(pool[to], hashed(pool[source]))
    for word in entropy[POOL:]:
        for to in range(POOL):
            pool[to] = _mix(pool[to], hashed(word))
    hashed = _Hash(OUT_OF, OUT_TIMES)
    low, high = (hashed(word).astype(np.uint64) for word in pool[:2])
    return high << np.uint64(32) | low


class _Hash:
    """The hash of one value after another, each with the next of a row of constants."""

    def __init__(self, first: int, times: int) -> None:
        self.constant, self.times = first, times

    def __call__(self, value: Words) -> Words:
        value = value ^ np.uint32(self.constant)
        self.constant = self.constant * self.times & 0xFFFFFFFF
        value = value * np.uint32(self.constant)
        return value ^ value >> SHIFT


def _mix(x: Words, y: Words) -> Words:
    mixed = LEFT * x - RIGHT * y
    return mixed ^ mixed >> SHIFT
