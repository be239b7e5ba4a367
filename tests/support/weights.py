"""Comparison of models."""

from fedceo.tensors.weights import Weights


def distance(one: Weights, other: Weights) -> float:
    """The largest difference between two entries of models with the same parameters."""
    assert one.keys() == other.keys()
    return max(float((one[name] - w).abs().max()) for name, w in other.items())
