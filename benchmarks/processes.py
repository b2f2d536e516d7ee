"""What a process and its helpers use, from /proc: their pids, CPU seconds and peak memory. Elsewhere than on Linux: of this process only.

A look at all processes takes a few milliseconds, so it is for pauses, not for loops.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> tuple[int, float] | None:
    """(parent's pid, CPU seconds), or None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS


def descendants(pid: int) -> list[int]:
    """All children, their children, and so on, that live now."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        if found := _stat(int(path.name)):
            children.setdefault(found[0], []).append(int(path.name))
    seen, waiting = [], [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            seen.append(child)
            waiting.append(child)
    return seen


def cpu_seconds() -> float:
    """CPU time that this process and its helpers have used."""
    return time.process_time() + sum(found[1] for pid in descendants(os.getpid()) if (found := _stat(pid)))


def peak_bytes(pid: int) -> int:
    """Peak resident memory; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


def is_alive(pid: int) -> bool:
    """Whether it runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
