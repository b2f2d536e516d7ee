"""What a run directory says: its journal, its identity, its status, its config, and how a run is found by its address.

It imports neither torch nor mlflow, and knows files, not live objects. Start with `journal` (every event) and `identity`
(run.json and the cards), then `catalog` (addresses).
"""
