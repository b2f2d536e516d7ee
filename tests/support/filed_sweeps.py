"""A manifest of a sweep that never ran."""

import itertools


def manifest(space, value=lambda *texts: 0.5, **facts):
    """A finished grid over `space`; `value` is given the texts of a job."""
    jobs = {}
    for number, texts in enumerate(itertools.product(*space.values())):
        overrides = [f"{key}={text}" for key, text in zip(space, texts, strict=True)]
        job = {"overrides": overrides, "status": "FINISHED", "value": value(*texts), "metric": "val/accuracy"}
        jobs[str(number)] = {**job, "mode": "max", **facts.get(str(number), {})}
    return {
        "format": "daypoint/sweep/1", "uid": "ab", "started": "2026-03-28T14:15:00+00:00", "started_ms": 1,
        "host": "elsewhere", "pid": 1, "status": "FINISHED", "ended": None, "overrides": [], "space": space,
        "jobs": jobs,
    }  # fmt: skip
