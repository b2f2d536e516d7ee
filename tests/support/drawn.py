"""Journals to draw, and what stands in a picture that was drawn."""

import numpy as np
from written_runs import WrittenRun

from daypoint.plots import curves


def written(root, values=(), **record):
    run = WrittenRun(root, **record)
    for value in values:
        run.log(loss=value)
    return run


def load(run, status="FINISHED"):
    return curves.load(run.files, run.record, address=f"20260328/{run.directory.name}", status=status)


def words(path):
    """What stands in an SVG, which has each text as a comment beside its outline."""
    return [part.partition("-->")[0].strip() for part in path.read_text(encoding="utf-8").split("<!--")[1:]]


def million(tmp_path, spike):
    rng = np.random.default_rng(0)
    values = rng.normal(1.0, 0.1, 1_000_000)
    values[spike] = 50.0
    steps = np.arange(len(values))
    curve = curves.Curve(
        "loss", steps, values, True, {k: np.empty(0) for k in ("first", "last", "mean", "min", "max")}
    )
    run = load(written(tmp_path, [1.0]))
    run.curves["loss"] = curve
    return run
