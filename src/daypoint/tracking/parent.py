"""The parent run of a sweep in MLflow: its children are the jobs, and it shows what was tried and what was best.

The first job that is sent creates it; every job that ends, and the end of the sweep, update it from `sweep.json`. So it can
be rebuilt from the directory, like everything in MLflow. Its params, which MLflow cannot change, are known from the start:
they are the values that the sweep tries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daypoint.base import day, keys
from daypoint.record import sweep
from daypoint.tracking import pictures
from daypoint.tracking.tags import Tags

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_LONGEST_NOTE_ROWS = 200


def find_or_create(client: MlflowClient, experiment_id: str, directory: Path) -> Run:
    """The parent run of a sweep in an experiment.

    Args:
        directory: the sweep directory.

    Raises:
        MlflowException: MLflow could not be asked or told.
    """
    from filelock import FileLock
    from mlflow.entities import Param, ViewType

    manifest = sweep.read(directory)
    where = f"tags.`daypoint.uid` = '{manifest['uid']}'"
    with FileLock(directory / ".parent.lock", timeout=60):
        for run in client.search_runs([experiment_id], where, run_view_type=ViewType.ALL, max_results=1):
            return run
        name = f"{directory.parent.name}-{directory.name.removeprefix('sweep-').partition('-')[0]} sweep"
        name += f" {' × '.join(manifest['space'])}" if manifest["space"] else ""
        tags = _first_tags(directory, manifest)
        run = client.create_run(experiment_id, manifest["started_ms"], tags, name[:250])
        params = [
            Param(keys.mlflow_key(key), json.dumps(values, ensure_ascii=False)[:6000])
            for key, values in manifest["space"].items()
        ]
        client.log_batch(run.info.run_id, params=params, synchronous=True)
        return run


def update(client: MlflowClient, experiment_id: str, directory: Path) -> None:
    """Update the parent run from the manifest: counts, the best job, and the status when the sweep is over.

    Raises:
        MlflowException: it did not arrive.
    """
    from mlflow.entities import Metric

    manifest = sweep.read(directory)
    run = find_or_create(client, experiment_id, directory)
    run_id, tags = run.info.run_id, Tags(run.data.tags)
    ended = [job for _, job in sweep.jobs_of(manifest) if job.get("ended")]
    ended.sort(key=lambda job: job["ended"])
    sent = int(tags.get("daypoint.shipped_jobs", "0"))
    points = [Metric(*point) for row in _points(ended)[sent:] for point in row]
    status = sweep.status_of(manifest)
    is_news = (run.info.status, tags.get("daypoint.status")) != (status, status)
    for tag, text in _result_tags(directory, manifest).items():
        tags.set(tag, text)
    tags.set("daypoint.shipped_jobs", str(len(ended)))
    tags.set("daypoint.status", status)
    if status != "RUNNING" and tags.get("mlflow.note.content") == _first_note(directory):
        tags.set("mlflow.note.content", _note(directory, manifest))
    for start in range(0, len(points), 900):
        client.log_batch(run_id, points[start : start + 900], synchronous=True)
    if status == "RUNNING":
        if run.info.status != "RUNNING":
            client.update_run(run_id, status="RUNNING")
    elif is_news:
        client.log_artifact(run_id, str(day.sweep_file(directory)))
        last = manifest["ended"] or (ended[-1]["ended"] if ended else None)
        client.set_terminated(run_id, status, None if last is None else _ms(last))
    tags.send(client, run_id)


def draw(client: MlflowClient, experiment_id: str, directory: Path) -> str | None:
    """Draw the picture of a sweep that is over, unless MLflow has it. Not part of `update`, for which trainers wait.

    Returns:
        Why it could not be drawn; None if it is there, or the sweep goes on.

    Raises:
        MlflowException: it did not arrive.
    """
    manifest = sweep.read(directory)
    if sweep.status_of(manifest) == "RUNNING":
        return None
    run = find_or_create(client, experiment_id, directory)
    shows = f"{sum(bool(job.get('ended')) for _, job in sweep.jobs_of(manifest))} jobs"
    return pictures.draw_sweep(client, run.info.run_id, manifest, shows, run.data.tags)


def _first_tags(directory: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    return {
        "date": directory.parent.name,
        "host": manifest["host"],
        "mlflow.source.type": "LOCAL",
        "mlflow.note.content": _first_note(directory),
        "daypoint.kind": "sweep",
        "daypoint.uid": manifest["uid"],
        "daypoint.run": _address(directory),
        "daypoint.directory": str(directory),
        "daypoint.status": "RUNNING",
    }


def _result_tags(directory: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    tags = {f"jobs.{status.lower()}": str(count) for status, count in sweep.counts(manifest).items()}
    if (best := sweep.best(manifest)) is not None:
        number, job = best
        tags |= {"best.run": f"{_address(directory)}/{number}", "best.value": repr(job["value"])}
        for text in sweep.varying(job["overrides"], manifest):
            key, _, value = text.partition("=")
            tags[f"best.{keys.mlflow_key(key.lstrip('+'))}"] = value
    return tags


def _points(ended: list[dict[str, Any]]) -> list[list[tuple[str, float, int, int]]]:
    """After each job that ended (key, value, milliseconds, jobs so far): how many there are, and the best so far."""
    metrics = {job.get("metric") for job in ended if job["status"] in sweep.DONE}
    # Jobs of different metrics cannot be compared.
    key = f"best/{keys.mlflow_key(metrics.pop() or 'value')}" if len(metrics) == 1 else None
    is_less_better = "min" in {job.get("mode") for job in ended}
    rows = []
    finished = failed = 0
    best: float | None = None
    for count, job in enumerate(ended, start=1):
        finished += job["status"] in sweep.DONE
        failed += job["status"] == "FAILED"
        value = sweep.value_of(job) if job["status"] in sweep.DONE else None
        if value is not None and (best is None or (value < best if is_less_better else value > best)):
            best = value
        row = [("jobs/finished", float(finished)), ("jobs/failed", float(failed))]
        if key is not None and best is not None:
            row.append((key, float(best)))
        rows.append([(name, number, _ms(job["ended"]), count) for name, number in row])
    return rows


def _first_note(directory: Path) -> str:
    return f"daypoint sweep; see `daypoint ls {_address(directory)}`"


def _note(directory: Path, manifest: Mapping[str, Any]) -> str:
    """What the page of the run shows: the jobs as a Markdown table."""
    best = sweep.best(manifest)
    lines = [_first_note(directory), "", "| job | status | value | overrides |", "|---:|---|---:|---|"]
    for number, job in sweep.jobs_of(manifest)[:_LONGEST_NOTE_ROWS]:
        value = "" if job.get("value") is None else f"{job['value']:.4g}"
        value = f"**{value}**" if best is not None and best[0] == number else value
        overrides = " ".join(sweep.varying(job["overrides"], manifest)).replace("|", "\\|")
        lines.append(f"| {number} | {job['status']} | {value} | {overrides} |")
    for rest, count, mean, deviation in sweep.over_seeds(manifest):
        lines.append(f"\nover {count} seeds: {mean:.4g} ± {deviation:.2g} {' '.join(rest)}")
    return "\n".join(lines)


def _address(directory: Path) -> str:
    return f"{directory.parent.name}/{directory.name}"


def _ms(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1000)
