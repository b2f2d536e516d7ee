"""Packages finished runs for MLflow in the background, one after the other, each in a process of its own.

The courier hands over the runs that asked for it (`tracking.package=true`). Each is `daypoint package RUN_DIRECTORY`, so
torch is imported in that process and not in the courier, and a model that crashes it harms nothing else. What goes wrong
stands in the run's courier.log. This module knows nothing of models.
"""

from __future__ import annotations

import queue
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daypoint.base import day
from daypoint.record import identity

SECONDS = 600.0
"""How long one model may take."""


class Packager:
    """A thread that packages models.

    Args:
        complain: called with a run directory and one line about what went wrong.
    """

    def __init__(self, complain: Callable[[Path, str], object]) -> None:
        self._complain = complain
        self._waiting: queue.SimpleQueue[tuple[Path, list[str], Path]] = queue.SimpleQueue()
        self._unfinished: list[Path] = []
        # A daemon, so that the courier can end before it; the process that is packaging goes on by itself.
        threading.Thread(target=self._work, daemon=True).start()

    @property
    def is_busy(self) -> bool:
        return bool(self._unfinished)

    def take(self, directory: Path, record: dict[str, Any], uri: str) -> None:
        """Package the model of a run, when those before it are done. Returns at once.

        Args:
            directory: the run directory.
            record: its run.json.
            uri: the store that the run was sent to.
        """
        # -P: a file in the working directory must not stand in for a module.
        command = [sys.executable, "-P", "-W", "ignore", "-m", "daypoint", "package", str(directory)]
        command += ["--uri", uri]
        if (outputs := day.outputs_of(directory, record["day"])) is not None:
            command += ["--outputs", str(outputs)]
        root = identity.project_then_and_now(directory, record)[1]  # whose conf/ says what the card may name
        self._unfinished.append(directory)
        self._waiting.put((directory, command, root if root.is_dir() else directory))

    def leave(self, why: str) -> None:
        """Say of those that are not done how to do it later."""
        for directory in self._unfinished:
            self._complain(
                directory,
                f"the model is perhaps not packaged ({why}); package it with: daypoint package {shlex.quote(str(directory))}",
            )
        self._unfinished.clear()

    def _work(self) -> None:
        while True:
            directory, command, where = self._waiting.get()
            complaint = _run(command, where) if directory in self._unfinished else None
            if directory in self._unfinished:  # `leave` may have reported it meanwhile
                if complaint is not None:
                    again = f"daypoint package {shlex.quote(str(directory))}"
                    self._complain(
                        directory, f"the model was not packaged: {complaint}; try it with: {again}"
                    )
                self._unfinished.remove(directory)


def _run(command: list[str], where: Path) -> str | None:
    """Run a command; what went wrong, in one line, or None."""
    with tempfile.TemporaryFile() as output:  # not a pipe, which would break when the courier ends
        try:
            done = subprocess.run(
                command,
                cwd=where,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"it took more than {SECONDS:.0f} s and was stopped"
        except OSError as error:
            return str(error)
        if done.returncode == 0:
            return None
        output.seek(0)
        lines = output.read().decode("utf-8", "replace").strip().splitlines()
    lines = [line for line in lines if "error: " in line] or lines or [f"exit code {done.returncode}"]
    return lines[-1][:1000]
