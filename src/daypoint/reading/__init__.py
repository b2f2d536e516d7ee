"""Reads run directories and makes what `ls`, `show`, `compare` and `trend` print, and the tables for pandas.

It reads files only: it changes nothing, asks no MLflow server and imports no torch. Start with `facts` (what can be asked of a
run) and `selection` (the runs for which a query holds); each of the other modules makes one kind of output.
"""
