"""NVIDIA's perf_analyzer against Orthrus: a second opinion. Run as `python -m loadtest.perf_analyzer`."""
