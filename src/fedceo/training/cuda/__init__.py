"""Layers and steps of the batched engine on a GPU: kernels, and steps that are captured once and replayed."""
