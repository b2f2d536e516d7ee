"""The files of a run directory: journal, run.json, identity cards, config; and finding runs by address.

It imports neither torch nor mlflow, and knows files, not live objects. Start with `journal` (every event) and `identity`
(run.json and the cards), then `catalog` (addresses).
"""
