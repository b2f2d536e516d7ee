"""What a training script uses: the run that `daypoint.open_run` opens, and everything that happens until it ends.

It never imports mlflow and never waits for it: `tracking` copies what is written here. Start with `opening` (how a run begins
and ends) and `run` (the methods that a training loop calls).
"""
