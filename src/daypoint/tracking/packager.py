"""The packager: packaging models in the background, one after the other, in processes of their own.

The courier gives it the runs that asked for it (`tracking.package=true`) and looks in now and then. Each is
`daypoint package RUN_DIRECTORY`, so torch is imported there and not in the courier, and a model that takes
the process down takes nothing else along. What goes wrong stands in the run's courier.log. One number: a
model gets ten minutes.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from daypoint.base import day

SECONDS = 600.0
"""How long one model may take."""


@dataclass
class _Work:
    directory: Path
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    deadline: float


class Packager:
    """Where models are packaged.

    Args:
        complain: called with a run directory and one line about what went wrong.
    """

    def __init__(self, complain: Callable[[Path, str], object]) -> None:
        self._complain = complain
        self._waiting: list[tuple[Path, dict[str, Any], str]] = []
        self._work: _Work | None = None

    @property
    def is_busy(self) -> bool:
        return self._work is not None or bool(self._waiting)

    def take(self, directory: Path, record: dict[str, Any], uri: str) -> None:
        """Package the model of a run, when those before it are done.

        Args:
            directory: the run directory.
            record: its run.json.
            uri: the store that the run was sent to.
        """
        self._waiting.append((directory, record, uri))
        self.look()

    def look(self) -> None:
        """See whether one is done, and begin the next. Never waits."""
        if self._work is not None:
            self._end()
        if self._work is None and self._waiting:
            self._begin(*self._waiting.pop(0))

    def leave(self, why: str) -> None:
        """Say of those that are not done how to do it later. What is being made goes on by itself."""
        if self._work is not None:
            self._waiting.insert(0, (self._work.directory, {}, ""))
        for directory, _, _ in self._waiting:
            self._complain(
                directory,
                f"the model may not be packaged ({why}); do it with: daypoint package {shlex.quote(str(directory))}",
            )
        self._waiting.clear()

    def _begin(self, directory: Path, record: dict[str, Any], uri: str) -> None:
        command = [
            sys.executable,
            "-P",
            "-W",
            "ignore",
            "-m",
            "daypoint",
            "package",
            str(directory),
            "--uri",
            uri,
        ]
        if (outputs := day.outputs_of(directory, record["day"])) is not None:
            command += ["--outputs", str(outputs)]
        root = Path(record["root"])
        # Not a pipe, which would fill up while nobody reads.
        output = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            process = subprocess.Popen(
                command,
                cwd=root if root.is_dir() else directory,  # whose conf/ says what the card may name
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            output.close()
            self._complain(directory, f"the model cannot be packaged: {error}")
            return
        self._work = _Work(directory, process, output, time.monotonic() + SECONDS)

    def _end(self) -> None:
        work = self._work
        assert work is not None
        if work.process.poll() is None:
            if time.monotonic() < work.deadline:
                return
            work.process.kill()
            work.process.wait()
            self._complain(
                work.directory, f"packaging the model took more than {SECONDS:.0f} s and was stopped"
            )
        elif work.process.returncode != 0:
            work.output.seek(0)
            lines = work.output.read().decode("utf-8", "replace").strip().splitlines()
            said = next((line for line in reversed(lines) if "error: " in line), lines[-1] if lines else "")
            text = said[:1000] or f"exit code {work.process.returncode}"
            self._complain(
                work.directory,
                f"the model was not packaged: {text}; try it with: daypoint package {shlex.quote(str(work.directory))}",
            )
        with contextlib.suppress(OSError):
            work.output.close()
        self._work = None
