"""The processes of a distributed job: rank and number of ranks, agreement between ranks, signals.

It knows no run and no files. Start with `group`.
"""
