"""Load tests: one set of workloads, many targets, the same measurements of all. Run as `python -m loadtest`."""
