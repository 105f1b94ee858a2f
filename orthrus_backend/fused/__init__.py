"""Llama-like decoders rewritten for speed: fewer, larger products and fused element-wise work."""
