"""Print the closing summary of a run: how it ended, whether MLflow has it, and which commands to type next.

The run has ended and is recorded when this is called; nothing here can lose anything. A single run waits for MLflow, within
`tracking.wait_seconds`; the jobs of a sweep do so together, when their process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from daypoint.base import day
from daypoint.base.day import RunFiles
from daypoint.base.redaction import redact_text
from daypoint.record import config, shelf
from daypoint.record.config import Tracking
from daypoint.run.console import RunConsole, number
from daypoint.tracking import store
from daypoint.tracking.courier import Courier, Outcome


@dataclass
class Closing:
    """The closing summary of one run.

    Attributes:
        record: its run.json, as it ended.
        courier: what sends it to MLflow; None when nothing does.
        process: the one in which the run ended, not one that was forked from it.
    """

    files: RunFiles
    record: Mapping[str, Any]
    settings: Tracking
    courier: Courier | None
    console: RunConsole
    process: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        root = Path(self.record["place"]["root"])
        outputs = config.outputs_directory(self.settings, root)
        self._outputs = "" if outputs == root / "outputs" else f" --outputs {quote(str(outputs))}"
        # In a command that works from the project's directory.
        self._address = str(
            self.files.directory if self._outputs else day.address_of(self.files.directory, outputs)
        )
        self._called = quote(self._address)

    def say(
        self,
        status: str,
        summary: str | None,
        steps: int,
        latest: Mapping[str, Any],
        *,
        by: str | None = None,
        restores: bool = False,
    ) -> None:
        """Wait for MLflow, and print how the run ended.

        Args:
            summary: the error, if it ended with one.
            latest: the last value of every metric.
            by: the signal that ended it, such as Ctrl-C.
            restores: whether the program has called `run.restore`.
        """
        rows = [
            ("run", str(self.files.directory)),
            ("status", f"{f'{status} by {by}' if by else status}, {self._work(steps)}"),
        ]
        if summary:
            rows.append(("error", summary.splitlines()[0][:300]))
        if latest:
            rows.append(("last", "  ".join(f"{name} {number(value)}" for name, value in latest.items())))
        if best := shelf.best(self.files):
            rows.append(("best", str(best.relative_to(self.files.directory))))
        rows.append(("mlflow", self._deliver()))
        is_packaged = self.settings.package and self.courier is not None and status == "FINISHED"
        if is_packaged and self._has_checkpoint:
            loaded = f'mlflow.pyfunc.load_model("{self.files.package}")'
            rows.append(("model", f"being packaged in the background; when it is there: {loaded}"))
        commands = self._commands() if self.record["sweep"] is None else []
        if commands and status != "FINISHED" and (way_on := self._way_on(restores)):
            commands.insert(0, (way_on, "resume from the newest checkpoint"))
        self.console.closing(rows, commands)

    def _work(self, steps: int) -> str:
        attempt = self.record["attempts"][-1]
        done = steps - attempt["from_step"]
        here = f", {done} of them in this attempt," if attempt["number"] > 1 and done >= 0 else ""
        return f"{steps} steps{here} in {attempt['seconds']:.1f} s"

    def _way_on(self, restores: bool) -> str | None:
        """How to resume this run; None if its program cannot."""
        record, attempt = self.record, self.record["attempts"][-1]
        is_asked = "resume" in record["config"]
        if not self._has_checkpoint or not (restores or is_asked):
            return None
        if not (is_asked and record.get("choices")):  # not a Hydra app that takes it from its command line
            return f'daypoint.open_run(..., resume="{self._address}")'
        program, processes = attempt["argv"][0], record.get("ranks") or 1
        python = "python" if processes == 1 else f"torchrun --nproc_per_node={processes}"
        script = quote(program) if attempt["module"] is None else f"-m {attempt['module']}"
        if attempt["module"] is None and not program.endswith(".py"):  # an installed command
            return f"{Path(program).name} resume={self._called}"
        return f"{python} {script} resume={self._called}"

    def _commands(self) -> list[tuple[str, str]]:
        commands = [
            (f"daypoint show {self._called}", "epochs, checkpoints, hyperparameters"),
            (f"daypoint ls {self.record['day']}{self._outputs}", "the runs of this day"),
        ]
        if self.courier is not None and self._can_be_packaged and not self.settings.package:
            commands.append((f"daypoint package {self._called}", "the best checkpoint, for MLflow to serve"))
        elif self.courier is not None:
            commands.append(("daypoint ui", "compare the days in MLflow"))
        if day.project_root(Path.cwd()) != Path(self.record["place"]["root"]):
            commands.insert(0, (f"cd {quote(self.record['place']['root'])}", "the project of this run"))
        return commands

    @property
    def _has_checkpoint(self) -> bool:
        return shelf.latest(self.files, full=False).path is not None

    @property
    def _can_be_packaged(self) -> bool:
        """Whether there is a checkpoint, a config that a model can be built from, and a record of what the model takes."""
        config, data = self.record["config"], self.record["data"] or {}
        model, section = config.get("model"), config.get("data")
        takes = section.get("input_shape") if isinstance(section, dict) else None
        takes = takes or (data.get("preparation") or {}).get("features")
        return isinstance(model, dict) and "_target_" in model and bool(takes) and self._has_checkpoint

    # ------------------------------------------------------------ MLflow

    def _deliver(self) -> str:
        """Wait until MLflow has everything, or the time is over. Returns what to print about it."""
        if self.courier is None:
            return "off (tracking.enabled=false)"
        if self.record["sweep"] is not None:  # the next job need not wait for it
            self.courier.close_run(self.files.directory, 0.0)
            _jobs.append(self)
            return f"experiment {self.record['experiment']}, sent in the background"
        try:
            outcome = self._wait(self.settings.wait_seconds)
        except KeyboardInterrupt:  # the run has ended; only the waiting is given up
            return f"being sent in the background; if that fails: daypoint sync {self._called}"
        if outcome.done:
            page, uri, ui = outcome.url or "", self.record["tracking_uri"], "daypoint ui"
            if uri != store.tracking_uri(None, Path(self.record["place"]["root"])):
                ui += f" --uri {quote(redact_text(uri))}"
            address = page if page.startswith("http") else f"{store.UI_ADDRESS}/{page} (while `{ui}` runs)"
            return f"experiment {self.record['experiment']}, {address}"
        why = f" ({outcome.error})" if outcome.error else ""
        left = (
            f"{outcome.pending_rows:,} rows pending"
            if outcome.pending_rows
            else "not everything is there yet"
        )
        return f"{left}{why}; send the rest with: daypoint sync {self._called}"

    def _wait(self, wait_seconds: float) -> Outcome:
        assert self.courier is not None
        return self.courier.close_run(
            self.files.directory,
            wait_seconds,
            on_wait=lambda seconds: self.console.say(
                f"waiting for MLflow, {seconds:.0f} s at most (Ctrl-C: go on without) …"
            ),
        )


_jobs: list[Closing] = []
"""Jobs of a sweep that ended in this process."""


@atexit.register
def _wait_for_jobs() -> None:
    """At the end of a sweep's process, wait for all of its jobs together as long as for a single run."""
    jobs = [job for job in _jobs if job.process == os.getpid()]
    if not jobs:
        return
    deadline = time.monotonic() + jobs[-1].settings.wait_seconds
    missing = len(jobs)
    with contextlib.suppress(KeyboardInterrupt):  # the sweep is over; only the waiting is given up
        for job in jobs:
            missing -= job._wait(max(0.0, deadline - time.monotonic())).done
    text = f"everything of {len(jobs)} jobs is there" if len(jobs) > 1 else "everything of one job is there"
    if missing:
        sweep = Path(jobs[-1].record["sweep"]["directory"])
        text = f"{missing} of {len(jobs)} jobs are not there yet; send the rest with: daypoint sync {sweep.parent.name}/{sweep.name}"
    jobs[-1].console.say(f"mlflow: {text}")
