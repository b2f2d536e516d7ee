"""Print the summary of a sweep: a table of its jobs, means over seeds, and what failed with the command to run it again.

It reads the manifest and nothing else. Errors are cut after 300 characters; `sweep.json` has them whole.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from daypoint.base import day, tables
from daypoint.base.tables import Table
from daypoint.record import sweep


def print_summary(directory: Path, manifest: dict[str, Any]) -> None:
    """The jobs as a table, means over seeds, and what failed."""
    jobs = sweep.jobs_of(manifest)
    metrics = {job["metric"] for _, job in jobs if job.get("metric")}
    metric = metrics.pop() if len(metrics) == 1 else "value"
    best = sweep.all_best(manifest)
    rows: list[list[Any]] = []
    for number, job in jobs:
        value = "" if job.get("value") is None else tables.number(job["value"])
        if metrics and job.get("metric"):  # each job has its own
            value = f"{job['metric']} {value}"
        rows.append(
            [
                number,
                "KILLED" if job["status"] == "RUNNING" else job["status"],
                value + (" *" if number in best else ""),
                " ".join(sweep.varying(job["overrides"], manifest)),
                job["directory"] or "",
            ]
        )
    columns = ["job", "status", metric, "overrides", "run"]
    if all(job["directory"] in (None, str(number)) for number, job in jobs):  # else a second try: 3-2
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    is_filed = directory.parents[1] == day.project_root() / "outputs"
    address = f"{directory.parent.name}/{directory.name}" if is_filed else str(directory)
    print(f"\nsweep {address}  {directory}")
    print(tables.text(Table(columns, rows), colours=tables.has_colours(sys.stdout), longest=400))
    if best:
        print(f"* the best of {len(jobs)} jobs{', which are equal' if len(best) > 1 else ''}")
    for rest, count, mean, deviation in sweep.over_seeds(manifest):
        print(f"over {count} seeds: {metric} {mean:.4g} ± {deviation:.2g}  {' '.join(rest)}")
    failures = [(number, job) for number, job in jobs if job["status"] not in sweep.DONE]
    for number, job in failures:
        error = (job.get("error") or "killed").splitlines()[0][:300]
        print(f"job {number}: {error}\n  {directory / (job['directory'] or '')}")
    is_cut_short = manifest["stopped"] or manifest["status"] == "KILLED"
    if failures or is_cut_short:
        script = Path(sys.argv[0]).name or "train.py"
        counted = f"{len(failures)} of {len(jobs)} jobs failed; " if failures else ""
        print(f"{counted}run what failed{' or is missing' if is_cut_short else ''} again:")
        print(f"  python {script} -m sweep.resume={address}")
    else:
        _print_next(directory, dict(jobs), best, is_filed)


def _print_next(directory: Path, jobs: dict[int, dict[str, Any]], best: list[int], is_filed: bool) -> None:
    address = f"{directory.parent.name}/{directory.name}"
    outputs = "" if is_filed else f" --outputs {shlex.quote(str(directory.parents[1]))}"
    commands = {
        f"daypoint ls {address}{outputs}": "its jobs",
        f"daypoint plot {address} --values{outputs}": "what each was worth, over the values tried",
    }
    if best:
        run = jobs[best[-1]]["directory"] or best[-1]
        commands[f"daypoint show {address}/{run}{outputs}"] = "the best job"
    longest = max(map(len, commands))
    print("next")
    for command, what in commands.items():
        print(f"  {command:<{longest}}   # {what}")
