"""Trains a recorded run again, from its record alone, as a new run that says which one it repeats.

The script is the project's own, as it is now; nothing is checked out. Its config is the recorded one, frozen: Hydra gets it as
its primary config, in place of conf/, so `now()`, the environment and today's files are not asked. Before anything runs,
every `_target_` in it is held to the allow-list, and the script must lie in the project: a record is data from disk.
This module does not compare what the two runs measured (`daypoint.again.equality` does).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig, OmegaConf

from daypoint.again import equality, frozen
from daypoint.again.script import Script
from daypoint.base import day, files
from daypoint.base.errors import AddressError, CheckpointError, RunError
from daypoint.hydra import app as hydra_app
from daypoint.models import load
from daypoint.record import catalog, config, identity, shelf
from daypoint.record.catalog import StoredRun
from daypoint.run import causes, provenance, resume
from daypoint.run.description import REPRODUCES_VARIABLE


@dataclass(frozen=True)
class Plan:
    """What is to be run again.

    Attributes:
        run: the original.
        config: the config it began with, as recorded.
        card: the identity card that vouches for the config; None when the run has no checkpoint.
        batches: after how many batches to end; None for all of them.
        why: why not all of them.
    """

    run: StoredRun
    config: dict[str, Any]
    card: dict[str, Any] | None
    batches: int | None
    why: str | None


def find(address: str, outputs: Path, experiment: str | None = None) -> StoredRun:
    """The run that is meant: of a day or a sweep, the one whose checkpoint is its model.

    Args:
        experiment: which experiment's model, of a day that has several.

    Raises:
        AddressError: it names no run, several, or a checkpoint outside of its run.
    """
    if not day.is_day(address) and not any(Path(address).expanduser().glob("model_*.json")):
        found = catalog.find(address, outputs)
        if len(found) == 1:
            return found[0]
    run = load.choose(address, outputs, experiment).run
    if run is None:
        raise AddressError(
            f"{address}: expected a checkpoint in the directory of its run, found one that was copied out of it: "
            "there is nothing to compare with"
        )
    return run


def plan(run: StoredRun, steps: int | None = None) -> Plan:
    """What of a run can be run again.

    A run whose hyperparameters were changed when it was resumed is repeated up to the change; one that did not finish, up to
    where it came.

    Args:
        steps: how many batches at most.

    Raises:
        RunError: it is being trained, or recorded nothing that could be compared.
        CheckpointError: run.json has another config than the cards of the checkpoints.
    """
    if run.is_live:
        raise RunError(f"{run.address}: this run is being trained; wait for its end")
    began, until = _began_with(run.record)
    card = _card(run, began, until)
    batches, why = None, None
    if until is not None:
        batches = sum(step < until for step in equality.batch_steps(run))
        why = f"its hyperparameters were changed when it was resumed at step {until}"
    elif run.status != "FINISHED":
        batches, why = len(equality.batch_steps(run)), f"it was {run.status} after them"
    elif (run.record.get("reproduces") or {}).get("batches") is not None:
        batches, why = len(equality.batch_steps(run)), "it was itself told to end after them"
    if batches == 0:
        raise RunError(f"{run.address}: expected recorded batches to compare with, found none ({why})")
    if steps is not None and (batches is None or steps < batches):
        batches, why = steps, "--steps"
    return Plan(run, card["config"] if card else began, card, batches, why)


def _began_with(record: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
    """The config at step 0, and the step at which an attempt went on with another one."""
    if not any(attempt.get("changes") for attempt in record["attempts"]):
        return record["config"], None
    first = OmegaConf.create(config.escaped(record.get("first_config", record["config"])))
    now, until = first.copy(), None
    for attempt in record["attempts"][1:]:
        for key, (_, value) in attempt["changes"].items():
            OmegaConf.update(now, key, config.escaped(value), force_add=True)
        if attempt["from_step"] == 0:  # nothing of what was before counts
            first, until = now.copy(), None
        elif until is not None:
            until = min(until, attempt["from_step"])
        elif attempt["changes"]:
            until = attempt["from_step"]
    return config.resolve(first), until


def _card(run: StoredRun, began: Mapping[str, Any], until: int | None) -> dict[str, Any] | None:
    """The newest card with the config that the run began with."""
    history = shelf.history(run.files)
    digest = identity.config_sha256(began)
    fitting = [card for _, card in history if card["config_sha256"] == digest]
    if history and not fitting and until is None:
        changed = resume.changes(history[-1][1]["config"], began)
        lines = "; ".join(f"{key} is {a!r} in the card, {b!r} in run.json" for key, (a, b) in changed.items())
        raise CheckpointError(
            f"{run.files.run}: expected the config that is sealed in {history[-1][0]}, found another: {lines or 'its types'}; "
            "run.json was edited, restore it"
        )
    return fitting[-1] if fitting else None


def warnings(run: StoredRun, script: Script, outputs: Path) -> list[str]:
    """What of the code is not as it was; empty if it is, or if nobody can tell."""
    generated = provenance.generated_in(script.root, outputs)
    before, now = causes.code_of(run.record), provenance.inspect(script.root, generated=generated)[0]
    if before["commit"] is None:
        return []
    lines = causes.code_differs(before, now)
    if not lines:
        return []
    todo = []
    if now["diff_sha256"] not in (None, before["diff_sha256"]):
        changed = provenance.changed_files(script.root, generated=generated)
        names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        todo.append(f"commit or move what is not committed now ({names})")
    if before["commit"] != now["commit"]:
        todo.append(f"git checkout {before['commit']}")
    diff = run.files.uncommitted_diff()
    if (
        before["diff_sha256"] != now["diff_sha256"]
        and diff.is_file()
        and b"diff --git " in files.read_bytes(diff)
    ):
        todo.append(f"git apply {diff}")
    was = f"commit {before['commit'][:12]} with {'uncommitted changes' if before['diff_sha256'] else 'nothing else'}"
    return [*lines, *([f"to have it as it was ({was}): {'; '.join(todo)}"] if todo else [])]


# ---------------------------------------------------------------- running


def run_again(
    planned: Plan,
    script: Script,
    cfg: DictConfig,
    outputs: Path,
    overrides: Sequence[str] = (),
    stdout: IO[str] | None = None,
) -> StoredRun:
    """Start the script with the frozen config, wait for it, and read the run it made.

    Args:
        cfg: from `frozen.freeze`.
        overrides: Hydra overrides, as on the script's own command line.
        stdout: where its output goes; by default to this process's.

    Raises:
        RunError: it failed, or it recorded no run.
    """
    zone = OmegaConf.select(cfg, "tracking.timezone", default="local")
    directory = day.claim(outputs, day.now(zone))
    original = planned.run
    told = {
        "uid": original.record["uid"],
        "day": original.record["day"],
        "address": original.address,
        "card_sha256": planned.card["card_sha256"] if planned.card else None,
        "batches": planned.batches,
    }
    environment = {key: text for key, text in os.environ.items() if key != hydra_app.SWEEP_VARIABLE}
    environment[REPRODUCES_VARIABLE] = files.dumps(told, indent=False).decode().strip()
    with tempfile.TemporaryDirectory(prefix="daypoint-") as place:
        Path(place, "frozen.yaml").write_bytes(frozen.to_yaml(cfg, directory))
        command = [*script.training_command, "--config-path", place, "--config-name", "frozen", *overrides]
        code = _wait(subprocess.Popen(command, cwd=script.directory, env=environment, stdout=stdout))
    if not day.is_run(directory):
        for empty in (directory, directory.parent):
            with contextlib.suppress(OSError):
                empty.rmdir()
        raise RunError(
            f"{script}: expected a run in {directory}, found none (exit code {code}); see what it printed"
        )
    made = catalog.read(directory, outputs)
    is_complete = planned.batches is not None and len(equality.batch_steps(made)) >= planned.batches
    if made.status != "FINISHED" and not is_complete:  # a failure may have been reproduced, too
        raise RunError(
            f"{made.address}: the run again was {made.status} after {made.steps} steps (exit code {code}); see what it printed, "
            f"or compare what there is: daypoint reproduce {original.address} --against {made.address}"
        )
    return made


def _wait(process: subprocess.Popen[Any]) -> int:
    """Wait for a child that hears Ctrl-C itself, and saves a checkpoint before it ends."""
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue
    finally:
        signal.signal(signal.SIGTERM, before)
