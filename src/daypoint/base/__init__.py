"""What every other wing uses: errors, atomic writes, days and paths, metric names, redaction, statistics, tables.

It imports nothing of daypoint above it and no third-party package that is slow to import. Start with `errors` and `day`.
"""
