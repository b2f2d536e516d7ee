"""Writes the text on a run's page in MLflow: what the run is, how it ended, and the commands to get it back.

It is Markdown, made from run.json and the identity cards when the run has ended. A text that somebody has edited is left
alone (see `daypoint.tracking.shipment`). This module knows no MLflow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from daypoint.base.day import RunFiles
from daypoint.base.errors import DaypointError
from daypoint.record import shelf

_GROUPS = ("model", "optimizer", "scheduler", "loss", "data")


def first_note(record: Mapping[str, Any], address: str) -> str:
    """The text while the run goes on."""
    return f"daypoint run of {record['day']}; see `daypoint show {address}`"


def final_note(files: RunFiles, record: Mapping[str, Any], address: str, status: str) -> str:
    """The text when the run has ended.

    Args:
        record: its run.json.
        address: its address, such as `20260328/141502-123456`.
    """
    attempt = record["attempts"][-1]
    seconds = sum(each.get("seconds") or 0.0 for each in record["attempts"])
    head = [f"**{address}** {status}", f"{seconds:.1f} s"]
    card, metric = _best_card(files), (record.get("monitor") or {}).get("metric")
    if card is not None and metric in card["metrics"]:
        head.append(f"best {metric} {card['metrics'][metric]:.4g} (step {card['step']})")
    lines = [" · ".join(head), ""]
    if attempt.get("error"):
        lines += [f"{attempt['error']['type']}: {_cell(attempt['error']['message'])[:300]}", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {_cell(text)} |" for name, text in _facts(record)), ""]
    commands = [f"daypoint show {address}"]
    if card is not None:
        commands += [f'daypoint.load("{address}")', f"daypoint package {address}"]
    if attempt.get("overrides") is not None and record.get("choices"):
        script = Path(attempt["argv"][0]).name if attempt["argv"] else "train.py"
        commands.append(f"python {script} resume={address}")
    return "\n".join([*lines, *(f"    {command}" for command in commands)])


def _best_card(files: RunFiles) -> dict[str, Any] | None:
    with contextlib.suppress(DaypointError, OSError):  # `daypoint verify` names what is wrong
        if path := shelf.best(files) or shelf.latest(files, full=False).path:
            return shelf.read_card(path)
    return None


def _facts(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    config, choices = record["config"], record.get("choices") or {}
    for group in _GROUPS:
        section = config.get(group)
        name = choices.get(group)
        if name is None and isinstance(section, dict) and "_target_" in section:
            name = str(section["_target_"]).rpartition(".")[2]
        if name is not None:
            rate = section.get("lr") if group == "optimizer" and isinstance(section, dict) else None
            yield group, f"{name}, lr {rate:g}" if isinstance(rate, int | float) else str(name)
    if overrides := record["attempts"][0].get("overrides"):
        yield "overrides", " ".join(f"`{text}`" for text in overrides)
    if data := record.get("data"):
        yield "rows", f"{data['rows']:,}, fingerprint {str(data['fingerprint'])[:12]}"
    if (commit := record["git"]["commit"]) is not None:
        yield "code", commit[:12] + (" and uncommitted changes" if record["git"]["dirty"] else "")
    if record.get("device"):
        yield "device", str(record["device"])


def _cell(text: str) -> str:
    """Text as it can stand in a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
