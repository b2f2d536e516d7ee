"""Everything that touches Hydra: config schemas, the dated output directory, overrides, and the jobs of a sweep.

All other packages get plain data and never import hydra. Start with `app`.
"""
