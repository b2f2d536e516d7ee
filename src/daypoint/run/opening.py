"""Open a run, a new one or one that is resumed, and record how it ends.

    with daypoint.open_run(cfg) as run: ...

A new run claims its directory: creating the journal succeeds for one process only. A resumed run
(`resume=`) keeps its directory, its uid and its MLflow run, and begins a new attempt. All checks come before
the first write.

How the block is left decides the status: its end or `sys.exit(0)` is FINISHED, an exception or another exit
code FAILED, Ctrl-C and SIGTERM KILLED. This module never imports mlflow.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from daypoint.base import day
from daypoint.base.day import RunFiles
from daypoint.base.errors import CheckpointError, ConfigError, DaypointError, RunError
from daypoint.base.files import write_atomic
from daypoint.base.redaction import HIDDEN, redact
from daypoint.hydra import app as hydra_app
from daypoint.hydra import sweep as hydra_sweep
from daypoint.ranks import group
from daypoint.ranks.signals import Terminated, stops
from daypoint.record import catalog, config, identity, journal, shelf, source, spool
from daypoint.record.ending import ending_of
from daypoint.record.journal import Journal
from daypoint.record.replay import Replay, replay
from daypoint.run import provenance, resume
from daypoint.run.console import RunConsole
from daypoint.run.description import new_attempt, new_record, place_of
from daypoint.run.entry import Entry
from daypoint.run.recorder import Recorder, now_ms
from daypoint.run.request import Request
from daypoint.run.run import Run
from daypoint.tracking import store
from daypoint.tracking.courier import Courier


def open_run(
    cfg: DictConfig | Mapping[str, Any] | None = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    data: Any = None,
    monitor: str | None = None,
    mode: str | None = None,
    keep: int | None = None,
    quiet: bool = False,
) -> contextlib.AbstractContextManager[Run]:
    """Open a run: claim its directory, record what it is, and record how it ends. Use it with `with`.

    Args:
        cfg: the hyperparameters, any nested map of plain data. A Hydra config is resolved in place, so what
            the program reads afterwards is what was recorded. Its section `tracking` (see
            `daypoint.record.config.Tracking`) says where to record.
        run_dir: the run directory; by default Hydra's, or outside Hydra a new one under `outputs/`.
        resume: the run to resume: an address, `last` or a path; by default `cfg.resume`, or none. Call
            `run.restore` before the loop.
        data: what is trained on: anything with `name`, `rows` and `fingerprint()`, recorded as the dataset.
        monitor: metric that says which checkpoint is best; by default `cfg.trainer.monitor`, or none.
        mode: `max` or `min`; by default `cfg.trainer.mode`, else min for a metric with "loss" or "error" in
            its name.
        keep: latest checkpoints to keep besides the best; by default `cfg.trainer.keep`, else all.
        quiet: print nothing but warnings.

    Raises:
        ConfigError: a setting cannot work. Nothing has been written.
        AddressError: `resume` names no run, or several.
        CheckpointError: the run to resume has checkpoints, but none is whole.
        RunError: the directory holds a run already, is in use, or cannot be written.
        StoreError: the MLflow store is there but cannot take this run (a deleted experiment).
    """

    @contextlib.contextmanager
    def opened() -> Iterator[Run]:
        with hydra_app.one_message():
            hydra_sweep.check_job()
            request = Request(cfg, data, monitor, mode, keep)
            if request.job is not None:
                hydra_app.shorten_interrupts()
            address = resume if resume is not None else request.plain.get("resume")
            if address is not None and run_dir is not None:
                raise ConfigError(
                    "run_dir, resume: expected one of them, found both; a resumed run has its directory"
                )
            opening = _Opening(request, RunConsole(quiet or not group.is_main()))
            run = opening.new(run_dir) if address is None else opening.again(os.fspath(address))
        with stops(run._stop):
            try:
                run._announce()
                yield run
                run._stop_if_asked()
            except BaseException as error:
                run._end(_status_of(error), None if _is_good_exit(error) else error)
                if isinstance(error, SystemExit) and not isinstance(error, Terminated) and request.in_sweep:
                    raise hydra_sweep.JobLeft(error.code) from error  # the end of this job, not of the sweep
                raise
            run._end("FINISHED", None)

    return Entry(opened)


def _status_of(error: BaseException) -> str:
    # GeneratorExit: the block was given up, not left.
    if isinstance(error, Terminated | KeyboardInterrupt | GeneratorExit):
        return "KILLED"
    return "FINISHED" if _is_good_exit(error) else "FAILED"


def _is_good_exit(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and error.code in (None, 0)


class _Opening:
    def __init__(self, request: Request, console: RunConsole) -> None:
        self.request = request
        self.console = console

    def new(self, run_dir: str | os.PathLike[str] | None) -> Run:
        """Open a run that did not exist before."""
        request = self.request
        if request.in_sweep and config.section(request.plain, "sweep").skip_done:
            self._skip_if_done()
        self._check_store(request.experiment)
        directory, moment = self._directory(run_dir)
        git, diff = self._code()
        record = new_record(request, directory, moment, git)
        files = RunFiles(directory, record["day"])
        if group.is_main():
            run = self._start(record, files, _claim(files), Replay(), None, diff)
        else:
            run = Run(record, files, request.settings, request.plain, None, None, None, self.console)
        if (reproduces := record["reproduces"]) and reproduces["batches"] is not None:
            run._end_after(reproduces["batches"])
        return run

    def again(self, address: str) -> Run:
        """Open a run that has ended, or died, to go on from its newest whole checkpoint."""
        request, uri = self.request, self.request.uri
        if request.in_sweep:
            raise ConfigError(
                f"resume={address}: expected a single run, found a sweep; resume its jobs one by one"
            )
        found = catalog.find_one(address, request.outputs)
        files, record = found.files, found.record
        if found.is_live:
            raise RunError(
                f"{found.address}: this run is being trained by process {record['attempts'][-1]['pid']}; stop it first"
            )
        config_now = {**redact(request.plain), "resume": record["config"].get("resume")}
        changed = resume.changes(record["config"], config_now)
        resume.refuse_fixed(changed, address)
        self._refuse_other_data(record, address)
        self._check_store(record["experiment"])
        checkpoints = shelf.latest(files)
        for problem in checkpoints.skipped:
            self.console.warn(f"{problem}; falling back to the checkpoint before")
        if checkpoints.path is None and checkpoints.skipped:
            raise CheckpointError(
                f"{files.checkpoints}: none of the checkpoints is whole; see `daypoint verify {found.address}`"
            )
        step = shelf.read_card(checkpoints.path)["step"] if checkpoints.path is not None else 0

        ending = ending_of(files)  # a run whose process was killed gets its status now
        journal_now = Journal.reopen(files.journal)
        spool.recover(files.spool, files.journal)
        record = identity.read_run(files.directory)
        moment = day.now(record["timezone"])
        git, diff = self._code()
        attempt = new_attempt(len(record["attempts"]) + 1, moment, request.job, git, config_now)
        attempt |= {"from_step": step, "changes": {key: list(pair) for key, pair in changed.items()}}
        record["attempts"].append(attempt)
        record.setdefault("first_config", record["config"])  # MLflow keeps the params of the first attempt
        record.update(
            status="RUNNING",
            git=git,
            code=self._model_code(record),
            config=config_now,
            config_sha256=attempt["config_sha256"],
            keep=request.keep,
            references=request.references,
            filled=request.filled,
            tracking_uri=uri,
            artifact_root=store.artifact_root(uri, request.root) if uri is not None else None,
            place=place_of(request, files.directory),
        )
        read = journal.read(files.journal)
        for damage in read.damages:
            self.console.warn(f"{files.journal}: {damage}; skipped, the rest is whole")
        state = replay(read.events, step)
        was = f", it was {ending.status}" if ending is not None else ""
        self.console.say(
            f"resuming at step {step}{was}" if checkpoints.path else f"no checkpoint yet: starting over{was}"
        )
        return self._start(record, files, journal_now, state, checkpoints.path, diff)

    def _model_code(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The files of the model's code now; says which are not as they were."""
        code = source.recorded(self.request.plain.get("model"), self.request.root)
        for name, was in (record.get("code") or {}).items():
            if name in code and code[name]["sha256"] != was["sha256"]:
                self.console.warn(
                    f"{code[name]['file']} has changed since this run began; its checkpoint goes into the model as it is now"
                )
        return code

    def _start(
        self,
        record: dict[str, Any],
        files: RunFiles,
        journal_now: Journal,
        state: Replay,
        source: Path | None,
        diff: bytes,
    ) -> Run:
        """Record that an attempt begins, and start everything that records it."""
        request = self.request
        attempt = record["attempts"][-1]["number"]
        start = {"event": "start", "time": now_ms(), "uid": record["uid"], "attempt": attempt}
        try:
            journal_now.append({**start, "step": state.step, "at": journal_now.size_bytes})
            write_atomic(files.config_of(attempt), config.to_yaml(config.escaped(record["config"])))
            if record["git"]["diff_sha256"] is not None:
                write_atomic(files.uncommitted_diff(attempt), diff)
            identity.write_run(files.directory, record)
            recorder = Recorder(journal_now, files, state)
        except OSError as error:
            raise RunError(
                f"{files.directory}: cannot write the run's first files: {error}; "
                "set tracking.outputs to a directory with space that can be written"
            ) from error
        courier = Courier.shared() if request.uri is not None else None
        if courier is not None:
            courier.add(files.directory)
        if request.job is not None and not files.directory.is_relative_to(request.outputs / record["day"]):
            self.console.warn(
                f"{files.directory} is not below {request.outputs}, so `daypoint ls` will not list it; put `daypoint` first in "
                "the defaults of your config, and leave hydra.run.dir alone"
            )
        settings, plain = request.settings, request.plain
        return Run(record, files, settings, plain, recorder, journal_now, courier, self.console, source)

    def _directory(self, run_dir: str | os.PathLike[str] | None) -> tuple[Path, datetime]:
        """The run directory and the one instant that is the run's start."""
        moment, job = day.now(self.request.settings.timezone), self.request.job
        if run_dir is not None:
            return Path(run_dir).expanduser().absolute(), moment
        if job is not None:
            return job.directory, hydra_app.claimed_at(job.directory) or moment
        if not group.is_main():
            return Path(group.agree("run", "")), moment
        directory = day.claim(self.request.outputs, moment)
        group.agree("run", str(directory))
        return directory, moment

    def _skip_if_done(self) -> None:
        shown, outputs = redact(self.request.plain), self.request.outputs
        if HIDDEN in str({key: value for key, value in shown.items() if key not in identity.IGNORED}):
            return  # hidden values may have been different ones
        sha256 = identity.config_sha256(shown)
        newest_first = reversed(day.run_directories(outputs))
        for run in catalog.each(newest_first, outputs, []):
            if run.record["config_sha256"] == sha256 and run.status == "FINISHED":
                metric = (run.record["monitor"] or {}).get("metric")
                raise hydra_sweep.JobSkipped(
                    f"done already by {run.address}", run.metrics.get(metric), str(run.directory)
                )

    def _code(self) -> tuple[dict[str, Any], bytes]:
        """The state of the code, and what of it is not committed. Earlier runs do not count as code, wherever they are."""
        root = self.request.root
        return provenance.inspect(root, generated=provenance.generated_in(root, self.request.outputs))

    def _check_store(self, experiment: str) -> None:
        uri, path = self.request.uri, store.sqlite_path(self.request.uri or "")
        if uri is None or not group.is_main():
            return
        if (repaired := store.repair_moved(uri)) is not None:
            self.console.say(repaired)
        if path is not None and not path.exists() and not self.request.in_sweep and self._has_ended_runs():
            self.console.say(store.made_anew(path))
        store.check_experiment(uri, experiment)

    def _has_ended_runs(self) -> bool:
        """Whether the newest run is over and was sent somewhere, so that its store should be there."""
        with contextlib.suppress(DaypointError):
            for directory in day.run_directories(self.request.outputs)[-1:]:
                record = identity.read_run(directory)
                return record["status"] != "RUNNING" and record["tracking_uri"] is not None
        return False

    def _refuse_other_data(self, record: Mapping[str, Any], address: str) -> None:
        if self.request.data is None or not record["data"]:
            return
        was, now = record["data"]["fingerprint"], self.request.data.fingerprint()
        if was != now:
            raise ConfigError(
                f"resume={address}: data {record['data']['name']}: expected the content with sha256 {was}, found {now}; "
                "the data has changed since, start a new run"
            )


def _claim(files: RunFiles) -> Journal:
    """Make the directory this run's own: creating the journal succeeds for one process only."""
    try:
        files.directory.mkdir(parents=True, exist_ok=True)
        return Journal.create(files.journal)
    except FileExistsError:
        raise RunError(
            f"{files.directory}: this directory holds a run already; "
            "leave run_dir and hydra.run.dir alone to get a new one"
        ) from None
    except OSError as error:
        raise RunError(
            f"{error.filename or files.directory}: cannot write the run directory: {error.strerror}; "
            "set tracking.outputs to a directory that can be written"
        ) from error
