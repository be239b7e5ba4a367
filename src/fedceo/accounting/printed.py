"""Epsilons as they are printed: rounded up, for a printed epsilon must not promise more than is so."""

import math
from decimal import ROUND_CEILING, Decimal


def rounded_up(epsilon: float | None) -> float | None:
    """Three significant digits, never less than the number itself."""
    if epsilon is None or epsilon == 0 or not math.isfinite(epsilon):
        return epsilon
    exact = Decimal(repr(epsilon))
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), ROUND_CEILING))


def in_hundredths(epsilon: float | None) -> str:
    """Two decimals, never less than the number itself."""
    if epsilon is None or not math.isfinite(epsilon):
        return "none" if epsilon is None else str(epsilon)
    return str(Decimal(repr(epsilon)).quantize(Decimal("0.01"), ROUND_CEILING))
