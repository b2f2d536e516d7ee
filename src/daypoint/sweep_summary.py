"""What a person sees when a sweep is over: its jobs as a table, means over seeds, what failed and how to run that again, or else
the commands worth typing next.

It reads the manifest and nothing else. One number: an error is cut after 300 characters here; `sweep.json` has all of it.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daypoint import day, sweep

if TYPE_CHECKING:
    from rich.console import Console


def print_summary(directory: Path, manifest: dict[str, Any]) -> None:
    """The jobs as a table, means over seeds, and what failed."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, soft_wrap=True)
    jobs = sweep.jobs_of(manifest)
    metrics = {job["metric"] for _, job in jobs if job.get("metric")}
    metric = metrics.pop() if len(metrics) == 1 else "value"
    best = sweep.all_best(manifest)
    table = Table(box=None, pad_edge=False, header_style="bold")
    is_moved = any(job["directory"] not in (None, str(number)) for number, job in jobs)  # a second try: 3-2
    for column in ("job", "status", metric, "overrides", *(["run"] if is_moved else [])):
        table.add_column(column, no_wrap=True, justify="right" if column in ("job", metric) else "left")
    for number, job in jobs:
        value = job.get("value")
        shown = "" if value is None else f"{value:.4g}"
        shown = f"{job['metric']} {shown}" if metrics and job.get("metric") else shown  # each its own
        mark = " *" if number in best else ""
        status = "KILLED" if job["status"] == "RUNNING" else job["status"]
        varying = " ".join(sweep.varying(job["overrides"], manifest))
        place = [job["directory"] or ""] if is_moved else []
        table.add_row(str(number), status, shown + mark, varying, *place)
    console.width = max(console.width, 400)
    is_filed = directory.parents[1] == day.project_root() / "outputs"
    address = f"{directory.parent.name}/{directory.name}" if is_filed else str(directory)
    console.print(f"\nsweep {address}  {directory}")
    with console.capture() as drawn:
        console.print(table)
    for line in drawn.get().splitlines():
        console.out(line.rstrip(), highlight=False)
    if best:
        console.print(f"* the best of {len(jobs)} jobs{', which are equal' if len(best) > 1 else ''}")
    for rest, count, mean, deviation in sweep.over_seeds(manifest):
        console.print(f"over {count} seeds: {metric} {mean:.4g} ± {deviation:.2g}  {' '.join(rest)}")
    failures = [(number, job) for number, job in jobs if job["status"] not in sweep.DONE]
    for number, job in failures:
        error = (job.get("error") or "killed").splitlines()[0][:300]
        console.print(f"job {number}: {error}\n  {directory / (job['directory'] or '')}")
    is_cut_short = manifest["stopped"] or manifest["status"] == "KILLED"
    if failures or is_cut_short:
        script = Path(sys.argv[0]).name or "train.py"
        counted = f"{len(failures)} of {len(jobs)} jobs failed; " if failures else ""
        console.print(f"{counted}run what failed{' or is missing' if is_cut_short else ''} again:")
        console.print(f"  python {script} -m sweep.resume={address}")
    else:
        _print_next(console, directory, dict(jobs), best, is_filed)


def _print_next(
    console: Console, directory: Path, jobs: dict[int, dict[str, Any]], best: list[int], is_filed: bool
) -> None:
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
    console.print("next")
    for command, what in commands.items():
        console.print(f"  {command:<{longest}}   # {what}")
