"""Triton's side: tensors in, responses out. Importable only inside Triton's Python backend."""
