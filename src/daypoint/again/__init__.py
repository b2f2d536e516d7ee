"""A run a second time: `daypoint verify` checks its files, `daypoint reproduce` trains it again and compares every value.

It knows no trackers and no pictures: what it compares are run directories and journals. Start with `verify`, then `reproduce`.
"""
