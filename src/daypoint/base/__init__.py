"""What every other wing stands on: errors, files that survive, days and paths, names, redaction, statistics, tables.

It imports nothing of daypoint above it and no third-party package that is slow to import. Start with `errors` and `day`.
"""
