"""Normals of whole arrays: their law, far into its tails, and what their numbers depend on."""

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fedceo.training.normals import CHUNK, COARSE, NEAR_ONE, fill_normals


def drawn(count: int, seed: int = 0) -> npt.NDArray[np.float32]:
    out = np.full(count, np.nan, np.float32)
    fill_normals(out, np.random.default_rng(seed))
    return out


@pytest.mark.parametrize("count", [1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_every_entry_is_filled_and_none_comes_twice(count: int) -> None:
    found = drawn(count)
    assert np.isfinite(found).all()
    assert len(np.unique(found)) >= count - count**2 / 2**23, "no more ties than rounding to float32 makes"
    assert np.array_equal(found, drawn(count)) and not np.array_equal(found, drawn(count, 1))


def test_the_law() -> None:
    found = drawn(4_000_000).astype(np.float64)
    assert stats.kstest(found, "norm").pvalue > 1e-6
    assert stats.kstest(found[: CHUNK // 2] ** 2 + found[CHUNK // 2 : CHUNK] ** 2, stats.chi2(2).cdf).pvalue > 1e-6
    for power, wanted in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        moments = found**power
        assert abs(moments.mean() - wanted) < 5 * moments.std() / len(found) ** 0.5, power
    beyond = [np.count_nonzero(np.abs(found) > far) for far in (3, 4, 4.5, 5)]
    for count, far in zip(beyond, (3, 4, 4.5, 5), strict=True):
        assert stats.binomtest(count, len(found), 2 * stats.norm.sf(far)).pvalue > 1e-6, far
    one, other = found[: CHUNK // 2], found[CHUNK // 2 : CHUNK]
    assert_uncorrelated(found[::2], found[1::2], "neighbours")
    assert_uncorrelated(one, other, "the two of a pair")
    assert_uncorrelated(one**2, other**2, "their squares")


def assert_uncorrelated(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], what: str) -> None:
    assert abs(stats.pearsonr(a, b).statistic) < 5 / len(a) ** 0.5, what


class Constant:
    """A generator whose words are all the same."""

    def __init__(self, word: int, more: float) -> None:
        self.word, self.more = word, more

    def integers(self, *_: object, **__: object) -> npt.NDArray[np.uint64]:
        return np.array([self.word] * 4, np.uint32).view(np.uint64)

    def random(self, count: int) -> npt.NDArray[np.float64]:
        return np.full(count, self.more)


@pytest.mark.parametrize("word", [0, 1, COARSE - 1, COARSE, 2**31, NEAR_ONE - 1, NEAR_ONE, 2**32 - 1])
@pytest.mark.parametrize("more", [0.0, 0.25, 1 - 2.0**-53])
def test_tails_and_the_middle_are_as_fine_as_float32(word: int, more: float) -> None:
    """The radius is that of a uniform number of 32 bits and, where it is small, 53 more; it is never 0."""
    out = np.zeros(4, np.float32)
    fill_normals(out, Constant(word, more))  # type: ignore[arg-type]
    uniform = (word + (1.0 - more if word < COARSE else 0.5)) * 2.0**-32
    angle = np.float64(word) * np.pi * 2.0**-31
    wanted = np.sqrt(-2 * np.log(uniform)) * np.array([np.cos(angle), np.sin(angle)])
    assert np.allclose(out.reshape(2, 2), wanted[:, None], rtol=1e-4, atol=1e-6 * np.hypot(*wanted))
    assert np.any(out)
