"""FedCEO's server step on all tensors of a cohort at once."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedceo.tensors.truncation import truncated_tsvd

STREAMS = 4
"""How many tensors a GPU works on side by side: the small ones cost launches, the large ones arithmetic."""


def smooth(tensors: Mapping[str, Tensor], threshold: float | Mapping[str, float]) -> dict[str, Tensor]:
    """Every tensor through `truncated_tsvd`, as `fold` made them and `unfold` takes them back.

    Args:
        tensors: name -> (d, h, K).
        threshold: ratio^(t/I) / (2 strength) for all tensors, or one for each name.
    """
    thresholds = threshold if isinstance(threshold, Mapping) else dict.fromkeys(tensors, threshold)
    device = next((w.device for w in tensors.values() if isinstance(w, Tensor)), torch.device("cpu"))
    if device.type != "cuda":
        return {name: truncated_tsvd(w, thresholds[name]) for name, w in tensors.items()}

    here = torch.cuda.current_stream(device)
    streams = [torch.cuda.Stream(device) for _ in range(min(STREAMS, len(tensors)))]
    smoothed = {}
    largest_first = sorted(tensors, key=lambda name: -tensors[name].numel())
    for turn, name in enumerate(largest_first):
        stream = streams[turn % len(streams)]
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            smoothed[name] = truncated_tsvd(tensors[name], thresholds[name])
        smoothed[name].record_stream(here)
    for stream in streams:
        here.wait_stream(stream)
    return {name: smoothed[name] for name in tensors}
