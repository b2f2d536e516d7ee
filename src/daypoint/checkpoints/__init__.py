"""Weights and training state on disk: written whole or not at all, and read only when they match their card.

It unpickles nothing, and of a run it knows only the directory. Start with `checkpoint` (save and load), then `snapshot` (what is taken
out of live objects).
"""
