"""Models, data, losses and schedules that conf/ names with `_target_`.

Your own work as well: a `_target_` in your own package needs no change here. What train.py asks of each is in
the docstrings of `data.InMemory`, `models`, `losses` and `schedulers`. The zoo knows nothing of runs,
journals or MLflow.
"""
