"""Uploads that a mechanism neither clips nor noises: mechanism "none", and "record", whose training is private."""

from __future__ import annotations

from fedceo.mechanisms.clipping import replace_nonfinite, zero_nonfinite
from fedceo.mechanisms.uploads import Contribution, Senders, Stack


def bare_uploads(sent: Contribution, senders: Senders, step: float) -> Stack:
    """Uploads start_k + step * Delta_k; with a step of 1 the trained models themselves, to the last bit."""
    if step == 1.0:
        uploads, nonfinite = replace_nonfinite(sent.trained, sent.start)
        return Stack(uploads, senders.clients, senders.sizes, nonfinite)
    updates, nonfinite = zero_nonfinite({name: sent.trained[name] - start for name, start in sent.start.items()})
    uploads = {name: start + step * updates[name] for name, start in sent.start.items()}
    return Stack(uploads, senders.clients, senders.sizes, nonfinite)
