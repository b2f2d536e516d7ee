"""Weights and training state on disk: written whole or not at all, read only when they match their card.

It unpickles nothing and knows no run but its directory. Start with `checkpoint` (save and load), then `snapshot` (what is taken
out of live objects).
"""
