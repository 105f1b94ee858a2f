"""Attention over packed rows and paged keys, behind one small interface, and the seam into Hugging Face's models."""
