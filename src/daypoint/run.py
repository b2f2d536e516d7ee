"""A run, from its opening to its end: wires the rooms below together and owns the status.

    with daypoint.open_run(cfg) as run: ...

Opening claims the directory, writes run.json and the config, starts the journal and tells the courier. The end, whatever it is, goes
into the journal first, then into run.json, then to MLflow through the courier: a normal end or `sys.exit(0)` is FINISHED, an exception or another
exit code FAILED, Ctrl-C and SIGTERM KILLED. After SIGKILL nobody is left to say so but the courier, which does.

This module never imports mlflow. One number: an open run holds two descriptors, the journal and the courier's pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import yaml
from omegaconf import DictConfig

from daypoint import checkpoint, config, day, hydra_app, identity, keys, ranks, store
from daypoint.config import Tracking
from daypoint.console import RunConsole, number
from daypoint.courier import Courier
from daypoint.day import RunFiles
from daypoint.errors import DaypointError, JournalError, RunError
from daypoint.files import write_atomic
from daypoint.hydra_app import HydraJob
from daypoint.journal import Journal
from daypoint.record import close_attempt, experiment_name, new_record
from daypoint.recorder import Recorder, now_ms
from daypoint.scalar import to_py, to_step


class Terminated(SystemExit):
    """SIGTERM, as an exception, so that the run can end properly; the exit code is the shell's 143."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class Run:
    """One training run. Made by `open_run`, not by hand.

    Attributes:
        directory: the run directory, absolute.
        day: the day tag, such as `20260328`.
        address: how the run is called on the command line, `20260328/141502-123456`.
        uid: the name that never changes, 16 hexadecimal digits.
        config: the resolved config, as plain data.
        is_main: whether this process records (rank 0). On other ranks everything checks its values and writes nothing.
    """

    def __init__(
        self,
        record: dict[str, Any],
        files: RunFiles,
        settings: Tracking,
        plain: dict[str, Any],
        recorder: Recorder | None,
        journal: Journal | None,
        courier: Courier | None,
        console: RunConsole,
    ) -> None:
        self.directory = files.directory
        self.day = files.day
        self.uid: str = record["uid"]
        self.address = day.address_of(
            files.directory, config.outputs_directory(settings, Path(record["root"]))
        )
        self.config = plain
        self.is_main = recorder is not None
        self._record = record
        self._files = files
        self._settings = settings
        self._recorder = recorder
        self._journal = journal
        self._courier = courier
        self._console = console
        self._process = os.getpid()
        self._ended = False
        self._started_seconds = time.monotonic()
        self._silent_step = 0
        self._warned: set[str] = set()
        self._left_error: JournalError | None = None
        self._batches: int | None = None

    # ------------------------------------------------------------ recording

    @property
    def step(self) -> int:
        """Steps done so far; equally the step that the next `log` will have. The first one is 0."""
        return self._recorder.step if self._recorder else self._silent_step

    @property
    def latest(self) -> dict[str, bool | int | float]:
        """The last value of every metric."""
        return dict(self._recorder.latest) if self._recorder else {}

    def log(
        self,
        metrics: Mapping[str, Any] | None = None,
        /,
        *,
        step: Any = None,
        batch_size: int | None = None,
        **named: Any,
    ) -> dict[str, bool | int | float]:
        """Record the scalars of one batch: `run.log(loss=loss, lr=0.1)` or `run.log({"train/loss": loss})`.

        When it returns, the values survive the death of the process.

        Args:
            metrics: scalars by name: Python or numpy numbers, or 0-dim tensors on any device.
            step: a whole number >= 0; by default the next one.
            batch_size: makes the message about an unreduced loss more exact.
            named: more scalars.

        Returns:
            The same metrics as plain Python numbers.

        Raises:
            ScalarError: a value is not one real number; nothing of this call is recorded.
            JournalError: it could not be written (full disk); nothing of this call is recorded.
            RunError: the run has ended, or this is another process than the one that opened it.
        """
        if self._ended or os.getpid() != self._process:
            self._refuse()
        if metrics is None:
            metrics = named
        elif named:
            metrics = {**metrics, **named}
        if self._recorder is None:
            values = {name: to_py(value, name, batch_size=batch_size) for name, value in metrics.items()}
            self._silent_step = (self._silent_step if step is None else to_step(step)) + 1
            return values
        values = self._recorder.log(metrics, step, batch_size)
        self._console.step(self._recorder.steps_in_epoch, values)
        return values

    def log_epoch(
        self, metrics: Mapping[str, Any] | None = None, /, **named: Any
    ) -> dict[str, bool | int | float]:
        """Record scalars of the whole epoch, such as validation metrics. Arguments and errors as in `log`."""
        if self._ended or os.getpid() != self._process:
            self._refuse()
        metrics = {**(metrics or {}), **named}
        if self._recorder is None:
            return {name: to_py(value, name) for name, value in metrics.items()}
        return self._recorder.log_epoch(metrics)

    def epochs(self, count: int, *, start: int = 0, batches: int | None = None) -> Iterator[int]:
        """Iterate over epochs `start` to `count - 1`; each one's statistics are recorded when it ends.

        Args:
            count: the number of epochs of the whole run.
            start: the first one.
            batches: batches in an epoch, for the progress bar.
        """
        self._batches = batches
        for epoch in range(start, count):
            self._begin_epoch(epoch, count)
            try:
                yield epoch
            except GeneratorExit:  # the loop was left by break or an exception
                self._leave_epoch()
                raise
            self._end_epoch(complete=True)

    @contextlib.contextmanager
    def epoch(self, number: int) -> Iterator[int]:
        """One epoch: `with run.epoch(3): ...`."""
        self._begin_epoch(number, None)
        try:
            yield number
        except BaseException:
            self._leave_epoch()
            raise
        self._end_epoch(complete=True)

    def _begin_epoch(self, epoch: int, count: int | None) -> None:
        if self._ended or os.getpid() != self._process:
            self._refuse()
        if self._recorder is not None:
            self._recorder.begin_epoch(epoch)
            self._console.begin_epoch(epoch, count, self._batches)

    def _end_epoch(self, complete: bool) -> None:
        if self._recorder is not None and self._recorder.epoch is not None and not self._ended:
            self._console.end_epoch(self._recorder.end_epoch(complete))
            self._hear_courier()

    def _leave_epoch(self) -> None:
        """An epoch is being left early. An error here would be swallowed by the interpreter, so it is kept for the end."""
        if os.getpid() == self._process:
            try:
                self._end_epoch(complete=False)
            except JournalError as error:
                self._left_error = error

    def save(
        self, *, model: Any, optimizer: Any = None, scheduler: Any = None, scaler: Any = None, **extra: Any
    ) -> Path | None:
        """Write a checkpoint with its identity card, and move the pointers `last` and, if it is, `best`.

        Args:
            model: a torch module; `torch.compile` and DDP wrappings are taken off.
            optimizer, scheduler, scaler: whatever has a `state_dict`.
            extra: more plain data or tensors to come back at a resume.

        Returns:
            The checkpoint directory; None on other ranks than 0.

        Raises:
            CheckpointError: it could not be written; the previous one is untouched.
        """
        if self._ended or os.getpid() != self._process:
            self._refuse()
        if self._recorder is None:
            return None
        recorder = self._recorder
        path = checkpoint.save(
            self._files,
            step=recorder.step,
            epoch=recorder.epoch,
            record=self._record,
            attempt=len(self._record["attempts"]),
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            scaler=scaler,
            extra=extra or None,
            metrics=recorder.latest,
        )
        recorder.checkpoint(str(path.relative_to(self.directory)), recorder.epoch, recorder.latest)
        keep = self._record["keep"]
        if keep is not None:
            checkpoint.prune(self._files, keep_last=keep, keep_best=1)
        return path

    def _refuse(self) -> NoReturn:
        if os.getpid() != self._process:
            raise RunError(
                f"run {self.address}: opened by process {self._process}, used in process {os.getpid()} (a DataLoader worker?); "
                "return the values to the process that opened the run and log them there"
            )
        raise RunError(
            f"run {self.address}: it has ended; log inside the `with daypoint.open_run(...)` block"
        )

    def _on_nonfinite(self, name: str, value: float, step: int) -> None:
        policy = self._settings.on_nonfinite
        if policy == "stop":
            raise RunError(
                f"{name}: {value} at step {step}, and tracking.on_nonfinite is stop; the value is recorded"
            )
        if policy == "warn" and name not in self._warned:
            self._warned.add(name)
            self._console.warn(
                f"{name} is {value} at step {step}; recorded as it is (said once for each metric)"
            )

    def _hear_courier(self) -> None:
        for error in self._courier.poll() if self._courier is not None else ():
            if error not in self._warned:
                self._warned.add(error)
                self._console.warn(f"MLflow: {error}; training goes on, everything is in the journal")

    # ------------------------------------------------------------ the end

    def _end(self, status: str, error: BaseException | None) -> None:
        """Record how the run ended. Each step is tried even when an earlier one fails; the first failure is raised."""
        if self._ended or os.getpid() != self._process:
            return
        failures: list[BaseException] = [self._left_error] if self._left_error else []
        self._console.stop()
        recorder, journal = self._recorder, self._journal
        if recorder is None or journal is None:
            self._ended = True
            return

        def attempt(action: Callable[[], object]) -> None:
            try:
                action()
            except (DaypointError, OSError) as failure:
                failures.append(failure)

        attempt(lambda: self._end_epoch(complete=False))
        self._ended = True
        attempt(recorder.write_train_log)
        if failures and status == "FINISHED":
            status, error = "FAILED", failures[0]
        summary = f"{type(error).__name__}: {error}" if error is not None else None
        attempt(
            lambda: journal.append(
                {
                    "event": "end",
                    "time": now_ms(),
                    "attempt": len(self._record["attempts"]),
                    "status": status,
                    "step": recorder.step,
                    "error": summary,
                }
            )
        )
        attempt(journal.sync)
        seconds = time.monotonic() - self._started_seconds
        close_attempt(self._record, status, day.now(self._settings.timezone), seconds, error)
        attempt(lambda: identity.write_run(self.directory, self._record))
        journal.close()
        self._tell_the_end(status, summary, recorder)
        if failures and (error is None or error is failures[0]):
            raise failures[0]

    def _tell_the_end(self, status: str, summary: str | None, recorder: Recorder) -> None:
        seconds = self._record["attempts"][-1]["seconds"]
        rows = [
            ("run", str(self.directory)),
            ("status", f"{status}, {recorder.step} steps in {seconds:.1f} s"),
        ]
        if summary:
            rows.append(("error", summary.splitlines()[0][:300]))
        if recorder.latest:
            metrics = "  ".join(f"{name} {number(value)}" for name, value in recorder.latest.items())
            rows.append(("metrics", metrics))
        if best := checkpoint.best(self._files):
            rows.append(("best", str(best.relative_to(self.directory))))
        rows.append(("mlflow", self._deliver()))
        commands = [
            (f"daypoint show {self.address}", "epochs, checkpoints, identity"),
            (f"daypoint ls {self.day}", "the runs of this day"),
            ("daypoint ui", "compare the days in MLflow"),
        ]
        self._console.closing(rows, commands if self._record["sweep"] is None else ())

    def _deliver(self) -> str:
        """Wait, with a bound, until MLflow has everything; what to print about it."""
        if self._courier is None:
            return "off (tracking.enabled=false)"
        outcome = self._courier.close_run(
            self.directory,
            self._settings.wait_seconds,
            on_wait=lambda seconds: self._console.say(f"waiting for MLflow, {seconds:.0f} s at most …"),
        )
        if outcome.done:
            page = outcome.url or ""
            where = page if page.startswith("http") else f"{store.UI_ADDRESS}/{page} (while `daypoint ui` runs)"
            return f"experiment {self._record['experiment']}, {where}"
        why = f" ({outcome.error})" if outcome.error else ""
        return f"not everything is there yet{why}; send the rest with: daypoint sync {self.address}"


# ---------------------------------------------------------------- opening


@contextlib.contextmanager
def open_run(
    cfg: DictConfig | Mapping[str, Any] | None = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    data: Any = None,
    monitor: str | None = None,
    mode: str | None = None,
    keep: int | None = None,
    quiet: bool = False,
) -> Iterator[Run]:
    """Open a run: claim its directory, record who it is, and see it to its end.

    Args:
        cfg: the hyperparameters, any nested map of plain data. A Hydra config is resolved in place, so what the program reads
            afterwards is what was recorded. Its section `tracking` (see `daypoint.config.Tracking`) says where to record.
        run_dir: the run directory; by default Hydra's, or outside Hydra a new one under `outputs/`.
        data: what is trained on: anything with `name`, `rows` and `fingerprint()`, recorded as the dataset.
        monitor: metric that says which checkpoint is best; by default `cfg.trainer.monitor`, or none.
        mode: `max` or `min`; by default `cfg.trainer.mode`, else min for a metric with "loss" or "error" in its name.
        keep: latest checkpoints to keep besides the best; by default `cfg.trainer.keep`, else all.
        quiet: print nothing but warnings.

    Raises:
        ConfigError: a setting cannot work. Nothing has been written.
        RunError: the directory holds a run already, or cannot be written.
        StoreError: the MLflow store is there but cannot take this run (a deleted experiment).
    """
    run = _open(cfg, run_dir, data, monitor, mode, keep, quiet)
    with _signals():
        try:
            yield run
        except BaseException as error:
            run._end(_status_of(error), None if _is_good_exit(error) else error)
            raise
        run._end("FINISHED", None)


def _status_of(error: BaseException) -> str:
    if isinstance(error, Terminated | KeyboardInterrupt):
        return "KILLED"
    return "FINISHED" if _is_good_exit(error) else "FAILED"


def _is_good_exit(error: BaseException) -> bool:
    return isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and error.code in (None, 0))


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Turn SIGTERM into an exception while the run is open. A handler of the user's own is left alone."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def terminate(_signal: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _open(
    cfg: DictConfig | Mapping[str, Any] | None,
    run_dir: str | os.PathLike[str] | None,
    data: Any,
    monitor: str | None,
    mode: str | None,
    keep: int | None,
    quiet: bool,
) -> Run:
    plain = config.resolve(cfg)
    settings: Tracking = config.section(plain, "tracking")
    root = day.project_root()
    uri = store.tracking_uri(settings.uri, root) if settings.enabled else None
    keys.flatten(plain)  # two hyperparameters with one name are refused now
    if uri is not None and ranks.is_main():
        store.check_experiment(uri, experiment_name(settings, plain, data))

    job = hydra_app.current_job()
    directory, moment = _directory(run_dir, job, settings, root)
    trainer = plain.get("trainer")
    trainer = trainer if isinstance(trainer, dict) else {}
    record = new_record(
        directory=directory,
        moment=moment,
        settings=settings,
        plain=plain,
        job=job,
        root=root,
        uri=uri,
        data=data,
        monitor=monitor or trainer.get("monitor"),
        mode=mode or trainer.get("mode"),
        keep=keep if keep is not None else trainer.get("keep"),
        device=trainer.get("device"),
    )
    files = RunFiles(directory, record["day"])
    console = RunConsole(quiet or not ranks.is_main())
    if not ranks.is_main():
        return Run(record, files, settings, plain, None, None, None, console)

    journal = _claim(files)
    try:
        journal.append({"event": "start", "time": now_ms(), "uid": record["uid"], "attempt": 1, "step": 0})
        write_atomic(files.config, _yaml(record["config"]))
        identity.write_run(directory, record)
    except OSError as error:
        raise RunError(
            f"{directory}: cannot write the run's first files: {error}; "
            "set tracking.outputs to a directory with space that can be written"
        ) from error
    recorder = Recorder(journal, files)
    courier = Courier.shared() if uri is not None else None
    run = Run(record, files, settings, plain, recorder, journal, courier, console)
    recorder.on_nonfinite = run._on_nonfinite
    if courier is not None:
        courier.add(directory)
    console.opening(run.address, record["name"], str(directory))
    return run


def _directory(
    run_dir: str | os.PathLike[str] | None, job: HydraJob | None, settings: Tracking, root: Path
) -> tuple[Path, datetime]:
    """The run directory and the one instant that is the run's start."""
    moment = day.now(settings.timezone)
    if run_dir is not None:
        return Path(run_dir).expanduser().absolute(), moment
    if job is not None:
        return job.directory, hydra_app.claimed_at(job.directory) or moment
    if not ranks.is_main():
        return Path(ranks.agree("run", "")), moment
    directory = day.claim(config.outputs_directory(settings, root), moment)
    ranks.agree("run", str(directory))
    return directory, moment


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


def _yaml(plain: Mapping[str, Any]) -> bytes:
    """The config as YAML that OmegaConf reads back as the same data: what looks like an interpolation is text."""
    text = yaml.safe_dump(_escaped(plain), sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text.encode()


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("${", "\\${")
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value
