"""The run of a training script: opening it, recording, saving, resuming, ending it.

It never imports mlflow and never waits for it: `tracking` copies what is written here. Start with `opening` (how a run begins
and ends) and `run` (the methods that a training loop calls).
"""
