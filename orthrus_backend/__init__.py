"""Orthrus: embeddings and generation from one backbone, in one batch, as an NVIDIA Triton Python backend."""

__version__ = "0.1.0"
