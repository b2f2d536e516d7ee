"""The processes of a distributed job: the rank of this one, how all ranks agree on a value, and how a signal ends them.

It knows no run and no files. Start with `group`.
"""
