"""The processes of a distributed job: which of how many this one is, how all agree, and how a signal ends them.

It knows no run and no files. Start with `group`.
"""
