"""Starts a tritonserver that serves Orthrus: finds the binary, lays out its folders, and looks after the process."""
