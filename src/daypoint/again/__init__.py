"""Checking and repeating a run: `daypoint verify` checks its files, `daypoint reproduce` trains it again and compares.

It knows no trackers and no pictures: what it compares are run directories and journals. Start with `verify`, then `reproduce`.
"""
