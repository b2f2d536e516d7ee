"""What was measured, as numbers a person reads: medians and ratios, the machine, the JSON file and the Markdown page.

Everything that is compared was measured in the same round: a contender's stretch with its own process's stretch without logging, and
with the list. A median that may be off by e is written ± e (normal approximation from the median absolute deviation).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from contenders import CONTENDERS

MIB = 2**20


def summaries(entries: Iterable[Any]) -> dict[str, Any]:
    """Per contender: who it is, what it comes to, and every single measurement."""
    by_name = {entry.name: entry for entry in entries}
    start = _median(by_name["none"].keep, "start_seconds")
    return {name: _contender(entry, start) for name, entry in by_name.items()}


def _contender(entry: Any, start_without: float | None) -> dict[str, Any]:
    return {
        "title": CONTENDERS[entry.name].title,
        "distribution": CONTENDERS[entry.name].imports,
        "version": entry.version,
        "failure": entry.failure,
        "step": _pace([round_ for session in entry.pace for round_ in session["rounds"]]),
        "session": _session(entry.keep, start_without),
        "sigkill": _counts(entry.kill),
        "measured": {"pace": entry.pace, "keep": entry.keep, "kill": entry.kill},
    }


def _pace(rounds: list[dict[str, Any]]) -> dict[str, Any] | None:
    if not rounds:
        return None

    def paired(key: str, mode: str = "contender") -> list[float]:
        return [of[mode][key] - of["none"][key] for of in rounds]

    step = paired("step_us")
    call, listed = median(paired("call_mean_us")), median(paired("call_mean_us", "list"))
    typical, list_typical = median(paired("call_median_us")), median(paired("call_median_us", "list"))
    return {
        "rounds": len(rounds),
        "without_us": median(of["none"]["step_us"] for of in rounds),
        "without_cpu_share": median(of["none"]["step_cpu_us"] / of["none"]["step_us"] for of in rounds),
        "cost_us": median(step),
        "cost_error_us": _error(step),
        "cost_cpu_us": median(paired("step_cpu_us")),
        "throughput": median(of["none"]["step_us"] / of["contender"]["step_us"] for of in rounds),
        "call_us": call,
        "call_typical_us": typical,
        "call_p99_us": median(of["contender"]["call_p99_us"] for of in rounds),
        "list_call_us": listed,
        "list_call_typical_us": list_typical,
        "times_list": call / listed,
        "times_list_typical": typical / list_typical,
    }


def _session(sessions: list[dict[str, Any]], start_without: float | None) -> dict[str, Any] | None:
    if not sessions:
        return None
    start = _median(sessions, "start_seconds")
    return {
        "start_seconds": start,
        "start_ratio": start / start_without if start_without else None,
        "finish_seconds": _median(sessions, "finish_seconds"),
        "peak_mib": _median(sessions, "peak_bytes") / MIB,
        "helpers_peak_mib": _median(sessions, "helpers_peak_bytes") / MIB,
        "counts": _counts(sessions),
    }


def _counts(sessions: list[dict[str, Any]]) -> dict[str, int] | None:
    keys = ("logged", "kept", "rounded", "wrong", "doubled")
    if not sessions or "logged" not in sessions[0]:
        return None
    return {key: sum(session[key] for session in sessions) for key in keys}


def _median(sessions: list[dict[str, Any]], key: str) -> float | None:
    return median(session[key] for session in sessions) if sessions else None


def _error(values: list[float]) -> float:
    center = median(values)
    return 1.2533 * 1.4826 * median(abs(value - center) for value in values) / len(values) ** 0.5


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = next(
            (line.partition(": ")[2] for line in cpuinfo.read_text().splitlines() if "model name" in line),
            model,
        )
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": model,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average_at_end": [round(load, 2) for load in os.getloadavg()],
    }


def commit() -> str | None:
    """The commit of this repository; with a plus when files differ from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


# ---------------------------------------------------------------- the files


def write(
    directory: Path,
    document: dict[str, Any],
    moment: datetime,
    name: str,
    page_of: Callable[[dict[str, Any]], str],
) -> Path:
    """The two files, `NAME-YYYYMMDD.json` and `.md`; returns the page."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{moment:%Y%m%d}"
    path.with_suffix(".json").write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    page = path.with_suffix(".md")
    page.write_text(page_of(document))
    return page


def markdown(document: dict[str, Any]) -> str:
    """The page of overhead.py."""
    contenders, settings, host = document["contenders"], document["settings"], document["machine"]
    some = next(iter(of["step"] for of in contenders.values() if of["step"]), None)
    lines = [
        f"# Logging three scalars a step, {document['date'][:10]}",
        "",
        f"    {document['command']}",
        "",
        f"{host['cores']} cores of {host['cpu']}, {host['memory_gib']} GiB, {host['system']}, Python {host['python']}; "
        f"{document['minutes']} minutes; load average at the end {host['load_average_at_end'][0]}.",
    ]
    if some:
        lines += [
            f"The loop without logging: {some['without_us']:.0f} µs a step, of which it had a core "
            f"{some['without_cpu_share']:.0%} of the time (less than 99 %, or a load average beyond the cores, means that something else was running, and that times are rough).",
        ]
    lines += ["", "## Cost of a step", ""]
    lines += table(
        [
            "",
            "call, µs: typical",
            "mean",
            "p99",
            "× list, typical",
            "× list, mean",
            "whole step, µs",
            "steps/s kept",
        ],
        _step_row,
        contenders,
        "step",
    )
    lines += [
        "",
        f"{some['rounds'] if some else 0} rounds. Each cell is a median over rounds of the difference to the loop without logging in the same round. "
        "*call*: time inside the call, caches as the training step leaves them. *whole step*: all that a step takes more, "
        "with what threads, helper processes and spoilt caches cost it.",
        "",
        "## The rest of a run",
        "",
    ]
    lines += table(
        [
            "",
            "to the first step, s",
            "× none",
            "to finish, s",
            "points kept",
            "peak memory, MiB",
            "helpers, MiB",
        ],
        _session_row,
        contenders,
        "session",
    )
    lines += [
        "",
        f"Medians of {settings['keeps']} runs of {settings['steps']:,} steps; the project is not new (the store is there). "
        "*to finish*: from the last step to the end of the process. *points kept*: read back and compared value by value.",
        "",
        "## After SIGKILL of the training process, at a random step",
        "",
    ]
    lines += table(["", "points logged", "kept", "lost", "share lost"], _sigkill_row, contenders, "sigkill")
    lines += [
        "",
        f"Sum of {settings['kills']} runs. A point is logged when the call has returned; it is kept when it can be read back, with its very value, once "
        "helper processes have ended.",
        "",
        "## Versions",
        "",
    ]
    versions = {of["distribution"]: of["version"] for of in contenders.values() if of["version"]}
    at = f" (commit {document['commit']})" if document["commit"] else ""
    lines.append(
        ", ".join(f"{name} {version}{at if name == 'daypoint' else ''}" for name, version in versions.items())
        + "."
    )
    if failures := {of["title"]: of["failure"] for of in contenders.values() if of["failure"]}:
        lines += ["", "## Did not take part", ""]
        lines += [f"- {title}: {failure}" for title, failure in failures.items()]
    return "\n".join(lines) + "\n"


def table(
    head: list[str], row: Callable[[dict[str, Any]], list[str]], contenders: dict[str, Any], part: str
) -> list[str]:
    """The lines of a table: a row for each contender that has this part."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for of in contenders.values():
        if of[part] is not None:
            lines.append("| " + " | ".join([of["title"], *row(of[part])]) + " |")
    return lines


def _step_row(of: dict[str, Any]) -> list[str]:
    return [
        f"{of['call_typical_us']:,.1f}",
        f"{of['call_us']:,.1f}",
        f"{of['call_p99_us']:,.0f}",
        _times(of["times_list_typical"]),
        _times(of["times_list"]),
        f"{of['cost_us']:,.0f} ± {of['cost_error_us']:,.0f}",
        f"{of['throughput']:.1%}",
    ]


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"


def _session_row(of: dict[str, Any]) -> list[str]:
    kept = "–"
    if counts := of["counts"]:
        rounded = f" ({counts['rounded']:,} rounded to float32)" if counts["rounded"] else ""
        doubled = f" ({counts['doubled']:,} twice)" if counts["doubled"] else ""
        kept = f"{counts['kept'] + counts['rounded']:,} of {counts['logged']:,}{rounded}{doubled}"
    return [
        f"{of['start_seconds']:.2f}",
        f"{of['start_ratio']:.2f}" if of["start_ratio"] else "–",
        f"{of['finish_seconds']:.2f}",
        kept,
        f"{of['peak_mib']:.0f}",
        f"{of['helpers_peak_mib']:.0f}",
    ]


def _sigkill_row(of: dict[str, int]) -> list[str]:
    kept = of["kept"] + of["rounded"]
    return [f"{of['logged']:,}", f"{kept:,}", f"{of['logged'] - kept:,}", f"{1 - kept / of['logged']:.1%}"]
