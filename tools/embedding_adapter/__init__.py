"""The default model's embedding adapter: where its text comes from, how it is trained, how it is measured."""
