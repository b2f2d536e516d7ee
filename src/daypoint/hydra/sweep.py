"""Follow a Hydra sweep: write each job into `sweep.json`, and let a job that fails leave the others running.

Hydra's launchers run the jobs; nothing is scheduled here. Hydra itself would give up the sweep at the first job that fails,
without naming the others. Here the failure is recorded, the sweeper gets no value for it, and at the end
the failures are listed with their directories and the exit code is 1. A job that is done already leaves
by an exception, since Hydra knows no other way. The callback in `daypoint.hydra.app` calls this module, in the process of
the sweep and in those of its jobs.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from omegaconf import DictConfig, OmegaConf

from daypoint.base import day
from daypoint.base.errors import ConfigError, DaypointError
from daypoint.base.files import loads, read_bytes, write_atomic
from daypoint.base.redaction import HIDDEN, redact, redact_overrides, redact_text
from daypoint.hydra.overrides import as_given, in_one_spelling, space_of
from daypoint.hydra.sweep_summary import print_summary
from daypoint.record import sweep

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn


class JobSkipped(Exception):
    """The job has nothing to do: its work is done already, or the sweep was stopped.

    Attributes:
        value: the objective that it had; None if that is not known.
        done_by: the directory of the run of another sweep that did it; None when the manifest is right as it is.
    """

    def __init__(self, text: str, value: float | None = None, done_by: str | None = None) -> None:
        super().__init__(text)
        self.value = value
        self.done_by = done_by


class JobLeft(Exception):
    """`sys.exit(code)` inside a job: the end of that job, not of the sweep."""

    def __init__(self, code: object) -> None:
        super().__init__(f"sys.exit({code!r})")
        self.is_good = code in (None, 0)


_refusal: Exception | None = None
"""Why the job that runs now should not run."""


def check_job() -> None:
    """Leave the job that runs now if it cannot work or need not run. Outside a sweep nothing happens.

    Raises:
        ConfigError: its config cannot work.
        JobSkipped: it is done already.
    """
    if _refusal is not None:
        raise _refusal


# ---------------------------------------------------------------- the sweep


def expand_resume(arguments: list[str], outputs: Path) -> list[str]:
    """Replace `-m sweep.resume=ADDRESS` by the overrides that the sweep was started with.

    Idempotent, since the processes of DataLoader workers may inherit what is returned here.

    Raises:
        AddressError: it names no sweep.
        ConfigError: there are other overrides too, or the sweep's hold a secret that was hidden.
    """
    given = [text for text in arguments if text.startswith("sweep.resume=")]
    is_sweep = not {"-m", "--multirun"}.isdisjoint(arguments)
    if not is_sweep or not given or given[-1] in ("sweep.resume=null", "sweep.resume="):
        return arguments
    mine = ("sweep.", "hydra", "-", "+hydra", "tracking.outputs=")

    def of_the_jobs(texts: list[str]) -> list[str]:
        return [text for text in texts if "=" in text and not text.startswith(mine)]

    others = of_the_jobs(arguments)
    for text in arguments:
        if text.startswith("tracking.outputs="):
            outputs = (outputs.parent / Path(text.partition("=")[2]).expanduser()).absolute()
    directory = sweep.find(given[-1].partition("=")[2].strip("'\""), outputs)
    manifest = sweep.read(directory)
    if others and others == of_the_jobs(manifest["overrides"]):
        return arguments
    if others:
        raise ConfigError(
            f"sweep.resume: expected no other overrides, found {' '.join(others)}; the sweep is run as it was, "
            "start a new one to change it"
        )
    names = {text.partition("=")[0] for text in arguments}
    hydras = [text for text in manifest.get("hydra_overrides", ()) if text.partition("=")[0] not in names]
    recorded = [*hydras, *manifest["overrides"]]
    if hidden := [text for text in recorded if HIDDEN in text]:
        raise ConfigError(
            f"sweep.resume: {' '.join(hidden)}: a secret, which no file holds; put it into the environment and into the config "
            "as ${oc.env:NAME}, and start a new sweep"
        )
    kept = [text for text in arguments if not text.startswith(("sweep.resume=", "tracking.outputs="))]
    return [*kept, *recorded, f"sweep.resume='{directory}'"]


def begin(directory: Path, moment: datetime, config: DictConfig) -> None:
    """Write the manifest of a sweep that starts or goes on, and have the end of the process close it."""
    overrides = [text for text in as_given(config.hydra.overrides.task) if not text.startswith("sweep.")]
    params = OmegaConf.select(config, "hydra.sweeper.params") or {}
    space = space_of([f"{key}={value}" for key, value in params.items()] + overrides)
    sweep.create(
        directory,
        moment=moment,
        overrides=redact_overrides(overrides),
        space=space,
        hydra_overrides=redact_overrides(
            [text for text in as_given(config.hydra.overrides.hydra) if text != "hydra.mode=MULTIRUN"]
        ),
        resumes=bool(OmegaConf.select(config, "sweep.resume")),
    )
    atexit.register(_left_open, directory, os.getpid())


def end(directory: Path) -> None:
    """Record that all jobs are over, and print how they went.

    Raises:
        SystemExit: with code 1, when one of them failed.
    """

    def close(manifest: dict[str, Any]) -> None:
        failed = any(job["status"] not in sweep.DONE for _, job in sweep.jobs_of(manifest))
        manifest["status"] = "FAILED" if failed or manifest["stopped"] else "FINISHED"
        manifest["ended"] = _now()

    with _errors_told():
        manifest = sweep.change(directory, close)
        print_summary(directory, manifest)
    if manifest["status"] != "FINISHED":
        raise SystemExit(1)


def _left_open(directory: Path, pid: int) -> None:
    """At the end of the process: remove a sweep that has no job, close one that was cut short."""
    if os.getpid() != pid or not day.sweep_file(directory).is_file():
        return
    with _errors_told():
        manifest = sweep.read(directory)
        if not manifest["jobs"]:
            for path in (day.sweep_file(directory), directory / "multirun.yaml", *directory.glob(".*.lock")):
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                for path in (directory, directory.parent, directory.parent.parent):
                    path.rmdir()
        elif manifest["status"] == "RUNNING":
            print_summary(directory, sweep.change(directory, _kill))


@contextlib.contextmanager
def _errors_told() -> Iterator[None]:
    try:
        yield
    except (DaypointError, OSError) as error:
        print(f"error: the end of the sweep cannot be recorded: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def _kill(manifest: dict[str, Any]) -> None:
    manifest.update(status="KILLED", ended=_now())
    for _, job in sweep.jobs_of(manifest):
        if job["status"] == "RUNNING":
            job.update(status="KILLED", ended=_now())


def hide_secrets_on_screen() -> None:
    """Hydra's launchers log the overrides of each job, secrets in clear; hide them. Idempotent."""
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("hydra") and isinstance(logger, logging.Logger):
            logger.addFilter(_hide)


def _hide(line: logging.LogRecord) -> bool:
    line.msg, line.args = redact_text(line.getMessage()), None
    return True


def hide_secrets(path: Path) -> None:
    """Hydra has written multirun.yaml with every secret in clear; hide them before the first job begins."""
    if path.is_file():
        plain = yaml.safe_load(read_bytes(path))
        overrides = plain["hydra"]["overrides"]
        overrides["task"] = redact_overrides(overrides["task"])
        overrides["hydra"] = redact_overrides(overrides["hydra"])
        plain["hydra"]["job"]["override_dirname"] = None
        write_atomic(path, yaml.safe_dump(redact(plain), sort_keys=False, allow_unicode=True).encode())


# ---------------------------------------------------------------- a job


def begin_job(
    directory: Path,
    number: int,
    overrides: list[str],
    place: str,
    check: Callable[[], object],
    *,
    resumes: bool = False,
) -> None:
    """Record that a job starts in this process. If it should not run, `check_job`, which the program calls, raises.

    Args:
        directory: the sweep directory.
        place: the name of the job's directory in it.
        check: the pre-flight check of its config.
        resumes: whether the sweep is resumed, so that jobs that are done are skipped.
    """
    global _refusal
    _refusal = None
    overrides = redact_overrides([text for text in overrides if not text.startswith("sweep.")])
    manifest = sweep.read(directory)
    if manifest["stopped"]:
        _refusal = JobSkipped("the sweep was stopped by an earlier failure")
        return
    done = sweep.job_done(manifest, overrides)
    point = in_one_spelling(overrides)
    if not resumes:
        _flag_repeated(manifest, number, point)
    elif done is not None:
        _refusal = JobSkipped(f"done already as job {done[0]}", done[1].get("value"))
        return
    facts = {
        "status": "RUNNING",
        "overrides": overrides,
        "point": point,
        "directory": place,
        "started": _now(),
        **sweep.this_process(),
    }
    sweep.change_job(directory, number, **facts, error=None, value=None, uid=None, mode=None)
    try:
        if "/" in place:
            raise ConfigError(
                f"hydra.sweep.subdir: expected one directory below the sweep's for each job, found {place!r}; leave it alone "
                "(sweep.json and the names of the runs say what sets the jobs apart)"
            )
        check()
    except ConfigError as error:
        _refusal = error


def _flag_repeated(manifest: dict[str, Any], number: int, point: list[str] | None) -> None:
    """Say that a job is the same point as an earlier one."""
    for other, job in sweep.jobs_of(manifest):
        if other != number and point is not None and job.get("point") == point:
            print(
                f"warning: job {number} is the same point as job {other}; it runs all the same",
                file=sys.stderr,
            )
            return


def end_job(directory: Path, number: int, place: str, job: JobReturn, stop_at_failure: bool) -> None:
    """Record how a job ended. Hydra gets a value in each case, so that it goes on with the others."""
    from hydra.core.utils import JobStatus

    global _refusal
    _refusal = None
    result = job._return_value
    if isinstance(result, JobSkipped):
        job.status, job.return_value = JobStatus.COMPLETED, result.value
        if result.done_by is not None:
            facts = {"value": result.value, "directory": result.done_by, "error": str(result)}
            sweep.change_job(directory, number, status="SKIPPED", **facts)
        return
    run = _run_record(directory / place)
    facts = {
        "ended": _now(),
        "uid": run.get("uid"),
        "metric": None,
        "mode": None,
        **(run.get("monitor") or {}),
    }
    if isinstance(result, JobLeft) and result.is_good:
        job.status, job.return_value = JobStatus.COMPLETED, None
        sweep.change_job(directory, number, status="FINISHED", **facts)
    elif job.status == JobStatus.FAILED:
        is_ours = isinstance(result, DaypointError)
        text = str(result).removeprefix("error: ") if is_ours else f"{type(result).__name__}: {result}"
        text = redact_text(text)
        if not isinstance(result, DaypointError | JobLeft):
            print(redact_text("".join(traceback.format_exception(result))), file=sys.stderr, end="")
        print(f"job {number} failed: {text}", file=sys.stderr, flush=True)
        job.status, job.return_value = JobStatus.COMPLETED, None
        manifest = sweep.change_job(directory, number, status="FAILED", error=text, **facts)
        if stop_at_failure and not manifest["stopped"]:
            sweep.change(directory, lambda current: current.update(stopped=True))
    else:
        value = result if isinstance(result, bool | int | float) else None
        sweep.change_job(directory, number, status="FINISHED", value=value, **facts)


def _now() -> str:
    return datetime.now().astimezone().isoformat()


def _run_record(directory: Path) -> dict[str, Any]:
    try:
        return loads(read_bytes(directory / "run.json"))
    except (OSError, ValueError):
        return {}  # it failed before it opened a run
