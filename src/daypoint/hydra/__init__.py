"""The Hydra integration: config schemas, the dated output directory, overrides, and the jobs of a sweep.

Every other wing gets plain data and never imports hydra. Start with `app`.
"""
