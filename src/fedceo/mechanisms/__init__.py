"""Mechanisms: what clips and noises what leaves a client."""
