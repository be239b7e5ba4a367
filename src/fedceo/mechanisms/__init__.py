"""Mechanisms, one file each: they clip and noise all that leaves a client; `base.py` is the seam they share."""
