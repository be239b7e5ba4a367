"""Data in a few words, and for a notebook with a small chart of who or what has how many records."""

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from torch import Tensor

WIDTH, HEIGHT, MOST = 280, 60, 140
"""Size of the chart in pixels, and the most bars that can be told apart in it."""


def targets_in_words(y: Tensor, classes: int) -> str:
    """What is learnt from the records, as a number of things."""
    if y.is_floating_point():
        return f"{y.shape[1]} number{'' if y.shape[1] == 1 else 's'} to predict"
    return f"{classes} {'classes' if y.ndim == 1 else 'tokens'}"


def as_html(words: str, counts: Sequence[float], title: str) -> str:
    """The words of a repr above one bar for each count.

    Neighbours share a bar, of their mean, where there are too many.
    """
    text = f"<div>{escape(words[1:-1])}</div>"
    if len(counts) < 2:
        return text
    shown = _merged(counts)
    highest, step = max(shown) or 1.0, min(WIDTH / len(shown), 20)
    bars = "".join(
        f'<rect x="{number * step:.1f}" y="{HEIGHT * (1 - count / highest):.1f}" width="{max(step - 1, 0.5):.1f}" '
        f'height="{HEIGHT * count / highest:.1f}"/>'
        for number, count in enumerate(shown)
    )
    caption = f"{escape(title)}, 0 to {highest:,.0f}"
    return (
        f'{text}<svg width="{WIDTH}" height="{HEIGHT + 20}" fill="currentColor" role="img" font-size="11" '
        f'font-family="sans-serif"><title>{caption}</title><g fill="#2488C8">{bars}</g>'
        f'<text y="{HEIGHT + 14}">{caption}</text></svg>'
    )


def _merged(counts: Sequence[float]) -> list[float]:
    if len(counts) <= MOST:
        return list(counts)
    edges = [number * len(counts) // MOST for number in range(MOST + 1)]
    return [sum(counts[start:end]) / (end - start) for start, end in pairwise(edges)]
