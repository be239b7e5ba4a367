"""Mechanisms, one file each: what clips and noises what leaves a client; `base.py` is the seam they share."""
