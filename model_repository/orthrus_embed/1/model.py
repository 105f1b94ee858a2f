"""The entry point that Triton's Python backend looks for. All code is in the package `orthrus_backend`."""

from orthrus_backend.triton.embed_face import TritonPythonModel

__all__ = ["TritonPythonModel"]
