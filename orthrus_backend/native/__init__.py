"""Loops written in C++ for the CPU, compiled on the machine that runs them, and their Python side."""
