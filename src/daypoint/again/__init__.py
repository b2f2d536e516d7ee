"""Checks a run afterwards: `daypoint verify` checks its files, `daypoint reproduce` trains it again and compares every value.

It compares run directories and journals, and knows no tracking server and no pictures. Start with `verify`, then `reproduce`.
"""
