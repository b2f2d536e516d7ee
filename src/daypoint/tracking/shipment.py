"""A shipment: one run on its way into MLflow. Everything MLflow shows of a run is put there here.

How far a run has got is written in MLflow itself, in the tag `daypoint.shipped_bytes`; an empty store starts at 0. What
was sent but not yet marked when a process died is sent again: a point keeps its key, step, time and value, and MLflow
stores an identical point once. So the live courier, `daypoint sync` after a crash and a rebuild are one and the same
code. This module knows nothing of processes or of waiting; who has a `Shipment` has the lock on sending that run.
One number: 9,000 points into SQLite for a second of CPU, of which 98 % is MLflow's.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from daypoint.base import day, keys
from daypoint.base.day import RunFiles
from daypoint.base.errors import RunError, StoreError
from daypoint.record import identity, journal
from daypoint.record.ending import ending_of
from daypoint.record.journal import Damage
from daypoint.tracking import note, parent, pictures, store
from daypoint.tracking.fold import Fold, read_chunk

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

BATCH_POINTS = 999
"""Points in one call; MLflow takes 1,000."""

_PARAM_LIMIT = 6000
_TAG_LIMIT = 8000


class DeletedRun(StoreError):
    """The run was deleted in MLflow. That was somebody's wish, so it is not made again."""


class Tags:
    """The tags of a run: what MLflow has, and what it is yet to be told.

    Some tags are lists of remarks, `subject: text; subject: text`, one for each subject.
    """

    def __init__(self, known: dict[str, str]) -> None:
        self._texts = dict(known)
        self._changed: set[str] = set()

    def get(self, tag: str, default: str = "") -> str:
        return self._texts.get(tag, default)

    def set(self, tag: str, text: str) -> None:
        text = fit(text, _TAG_LIMIT)
        if self._texts.get(tag) != text:
            self._texts[tag] = text
            self._changed.add(tag)

    def remark(self, tag: str, subject: str, text: str) -> None:
        """Add a remark, unless there is one on this subject."""
        remarks = f"; {self._texts[tag]}" if tag in self._texts else ""
        if f"; {subject}: " not in remarks:
            text = text.replace("; ", ", ").replace(": ", " ")
            self.set(tag, f"{remarks}; {subject}: {text}"[2:])

    def take_changed(self) -> dict[str, str]:
        """What MLflow is to be told now."""
        changed, self._changed = sorted(self._changed), set()
        return {tag: self._texts[tag] for tag in changed}


class Shipment:
    """The exclusive right to send one run to one store, and how far that has come.

    `Shipment.begin`, then `advance` until it says False, then `finish`; `close` in any case. After an error from MLflow,
    close it and begin a new one: how far it really got is asked anew.

    Attributes:
        run_id, experiment_id: what MLflow calls the run.
        address: how daypoint calls it, such as `20260328/141502-123456`.
        url: the run's page; without a server only its last part.
        points: metric points sent by this shipment.
        offset_bytes: how much of the journal is in MLflow.
        status: what MLflow shows when all is there: FINISHED, FAILED or KILLED; RUNNING before.
    """

    def __init__(
        self, directory: Path, lock: int, client: MlflowClient, uri: str, artifacts: str | None
    ) -> None:
        self.directory = directory
        self.points = 0
        self._lock = lock
        self._client = client
        self._record = identity.read_run(directory)
        self._files = RunFiles(directory, self._record["day"])
        # Where it lies now: a project may have been moved.
        self._sweep = directory.parent if (self._record.get("sweep") or {}).get("uid") else None
        run = self._find_or_create(uri, artifacts)
        self.run_id: str = run.info.run_id
        self.experiment_id: str = run.info.experiment_id
        self.address = self._address()
        self.url = store.run_url(uri, self.experiment_id, self.run_id)
        self._tags = Tags(run.data.tags)
        self.offset_bytes = int(self._tags.get("daypoint.shipped_bytes", "0"))
        resumed = len(self._record["attempts"]) > 1
        self._fold = Fold(self._files.journal, self._tags.remark, self.offset_bytes if resumed else 0)
        self._complete(run)

    @classmethod
    def begin(cls, directory: Path, client: MlflowClient, uri: str, artifacts: str | None) -> Shipment | None:
        """Find or make the run in MLflow. None: another process is sending this run.

        Args:
            directory: the run directory, absolute.
            client: a client of the store at `uri`.
            uri: the store's address.
            artifacts: where a new experiment has its artifacts; None leaves it to the server.

        Raises:
            StoreError: the experiment or the run was deleted in MLflow.
            AddressError, RunError: there is no run in the directory, or it cannot be read.
            MlflowException: anything else that MLflow says; trying again later may help.
        """
        lock = _lock(directory)
        if lock is None:
            return None
        try:
            return cls(directory, lock, client, uri, artifacts)
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Give up the lock. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Shipment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def status(self) -> str:
        return self._tags.get("daypoint.status", "RUNNING")

    @property
    def damage(self) -> str:
        """What of the journal could not be read, in words."""
        return self._tags.get("daypoint.damaged")

    # ------------------------------------------------------------ the run in MLflow

    def _find_or_create(self, uri: str, artifacts: str | None) -> Run:
        from mlflow.entities import ViewType

        record, client = self._record, self._client
        uid = record["uid"]
        if not re.fullmatch(r"\w+", uid):
            raise RunError(f"{self._files.run}: expected a uid of hexadecimal digits, found {uid!r}")
        experiment_id = self._experiment(record["experiment"], uri, artifacts)
        where = f"tags.`daypoint.uid` = '{uid}'"
        found = client.search_runs([experiment_id], where, run_view_type=ViewType.ALL, max_results=10)
        for run in found:
            if run.info.lifecycle_stage == "active":
                return run
        if found:
            run_id = found[0].info.run_id
            raise DeletedRun(
                f"run {self._address()}: expected a live run in MLflow, found {run_id}, which was deleted there; restore "
                f"it with `MLFLOW_TRACKING_URI={shlex.quote(uri)} mlflow runs restore --run-id {run_id}`"
            )
        tags = self._first_tags()
        if self._sweep is not None and (mother := parent.find_or_create(client, experiment_id, self._sweep)):
            tags["mlflow.parentRunId"] = mother
        return client.create_run(experiment_id, record["started_ms"], tags, record["name"])

    def _experiment(self, name: str, uri: str, artifacts: str | None) -> str:
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            location = f"{artifacts}/{_as_directory(name)}" if artifacts else None
            try:
                return self._client.create_experiment(name, artifact_location=location)
            except MlflowException:
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:  # otherwise another process was quicker
                    raise
        number, location = experiment.experiment_id, experiment.artifact_location
        if text := store.complaint(uri, name, number, experiment.lifecycle_stage, location):
            raise StoreError(text)
        return number

    def _address(self) -> str:
        return day.address_in_day(self.directory, self._record["day"])

    def _first_tags(self) -> dict[str, str]:
        """The tags that a run is created with. They are not written again: people edit the note."""
        record, address = self._record, self._address()
        first = record["attempts"][0]
        git, argv = first.get("git", record["git"]), first["argv"]
        commit, dirty = git["commit"], git["dirty"]
        sweep = record["sweep"]
        tags = {
            **{keys.mlflow_key(name): text for name, text in (record.get("tags") or {}).items()},
            "date": record["day"],
            "host": record["host"],
            "device": record["device"],
            "git.commit": commit,
            "git.dirty": None if dirty is None else str(dirty).lower(),
            "mlflow.source.git.commit": commit,
            "mlflow.source.name": argv[0] if argv else None,
            "mlflow.source.type": "LOCAL",
            "mlflow.user": record["user"],
            "mlflow.note.content": note.first_note(record, address),
            "daypoint.uid": record["uid"],
            "daypoint.run": address,
            "daypoint.directory": str(self.directory),
            "daypoint.reproduces": (record.get("reproduces") or {}).get("address"),
            "daypoint.sweep": f"{Path(sweep['directory']).name}/{sweep['job']}" if sweep else None,
            "daypoint.status": "RUNNING",
        }
        if own := (record.get("tags") or {}).get("mlflow.note.content"):
            tags["mlflow.note.content"] = own
        return {key: fit(str(text), _TAG_LIMIT) for key, text in tags.items() if text is not None}

    def _complete(self, run: Run) -> None:
        """Send the params and the dataset that the run does not have yet; a resumed run is RUNNING again."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param

        params = []
        # MLflow cannot change a param, so it has those of the first attempt, and remarks on the others.
        config = self._record.get("first_config", self._record["config"])
        for key, value in keys.flatten(config).items():
            text = fit(value, _PARAM_LIMIT)
            if text != value:
                self._tags.remark(
                    "daypoint.truncated", key, "param is not whole here, but in the config artifact"
                )
            if key not in run.data.params:
                params.append(Param(key, text))
            elif run.data.params[key] != text:
                self._tags.remark("daypoint.params_changed", key, text)
        for attempt in self._record["attempts"]:
            for name, (_, value) in attempt.get("changes", {}).items():
                subject = f"{keys.mlflow_key(name)} in attempt {attempt['number']}"
                self._tags.remark("daypoint.params_changed", subject, json.dumps(value, ensure_ascii=False))
        self._client.log_batch(self.run_id, params=params, synchronous=True)
        data = self._record["data"]
        if data and not (run.inputs and run.inputs.dataset_inputs):
            source = json.dumps({"uri": fit(data["source"], 10_000)})
            dataset = Dataset(fit(data["name"], 500), data["fingerprint"][:36], "local", source)
            context = InputTag("mlflow.data.context", "training")
            self._client.log_inputs(self.run_id, [DatasetInput(dataset, [context])])
        if run.info.status != "RUNNING" and journal.is_being_written(self._files.journal):
            self._client.update_run(self.run_id, status="RUNNING")

    # ------------------------------------------------------------ the way of the data

    def advance(self) -> bool:
        """Send the next stretch of the journal. False: there was nothing to send.

        Raises:
            MlflowException: it did not arrive, or only in part.
        """
        from mlflow.entities import Metric

        reading = read_chunk(self._files.journal, self.offset_bytes)
        if reading.end_bytes == self.offset_bytes:
            return False
        points = [Metric(*point) for event in reading.events for point in self._fold.points(event)]
        for damage in reading.damages:
            self._remark_damage(damage)
        for start in range(0, len(points), BATCH_POINTS):
            self._client.log_batch(self.run_id, points[start : start + BATCH_POINTS], synchronous=True)
        # Last, so that the mark never says more than what is there.
        self._tags.set("daypoint.shipped_bytes", str(reading.end_bytes))
        self._tags.set("daypoint.status", "RUNNING")
        self._send_tags()
        self.points += len(points)
        self.offset_bytes = reading.end_bytes
        return True

    def finish(self, dead_pid: int | None = None) -> bool:
        """Give the run its final status and its files, once all of its journal is sent. False: it goes on.

        Args:
            dead_pid: a trainer that is known to be dead (see `daypoint.record.ending`).

        Raises:
            MlflowException, OSError: it did not arrive.
        """
        ending = ending_of(self._files, dead_pid)
        if ending is None:
            return False
        while self.advance():  # what the trainer left in its spool
            pass
        if torn := read_chunk(self._files.journal, self.offset_bytes).torn_bytes:
            self._remark_damage(Damage(self.offset_bytes, torn, "the last line was not finished"))
        if self.status != ending.status:
            self._client.set_terminated(self.run_id, ending.status, ending.time_ms)
            config = self._files.config
            configs = sorted(self.directory.glob(f"{config.stem}*{config.suffix}"))  # one for each attempt
            for path in (*configs, self._files.train_log, self._files.run):
                if path.exists():
                    self._client.log_artifact(self.run_id, str(path))
            if ending.error:
                self._tags.set("daypoint.error", ending.error)
            self._tell_note(ending.status)
            self._tags.set("daypoint.status", ending.status)  # sent last: everything is there
        self._send_tags()
        self.update_parent()
        return True

    def draw(self) -> str | None:
        """The pictures of a finished run, and of its sweep if that is over, unless they are there.

        Returns:
            Why one could not be drawn, in words.

        Raises:
            MlflowException: one did not arrive.
        """
        tags = {pictures.TAG: self._tags.get(pictures.TAG)}
        complaint = pictures.draw_run(self._client, self.run_id, self.directory, tags)
        if self._sweep is not None and day.sweep_file(self._sweep).is_file():
            complaint = parent.draw(self._client, self.experiment_id, self._sweep) or complaint
        return complaint

    def update_parent(self) -> None:
        """Bring the parent run of the sweep, if this is one of its jobs, up to date."""
        if self._sweep is not None and day.sweep_file(self._sweep).is_file():
            parent.update(self._client, self.experiment_id, self._sweep)

    def _tell_note(self, status: str) -> None:
        """Say on the run's page how it went, unless somebody has written something there."""
        told, address = self._tags.get("mlflow.note.content"), self._address()
        first = told == note.first_note(self._record, address)
        if first or told.startswith(f"**{address}** "):
            self._record = identity.read_run(self.directory)
            self._tags.set("mlflow.note.content", note.final_note(self._files, self._record, address, status))

    def _remark_damage(self, damage: Damage) -> None:
        last = damage.offset_bytes + damage.length_bytes
        self._tags.remark("daypoint.damaged", f"bytes {damage.offset_bytes} to {last}", damage.reason)

    def _send_tags(self) -> None:
        from mlflow.entities import RunTag

        tags = [RunTag(tag, text) for tag, text in self._tags.take_changed().items()]
        self._client.log_batch(self.run_id, tags=tags, synchronous=True)


def _lock(directory: Path) -> int | None:
    """Take the lock on sending a run, as a descriptor; None when another process has it. Death gives it up."""
    # The directory itself leaves no trace; NFS wants a file that is open for writing.
    for path, flags in ((directory, os.O_RDONLY), (directory / ".courier.lock", os.O_RDWR | os.O_CREAT)):
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            if path != directory:
                raise
    return None


def fit(text: str, limit: int) -> str:
    """Text that every MLflow store takes: not too long, and without NUL, which PostgreSQL refuses."""
    text = text.replace("\0", "\\x00")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _as_directory(name: str) -> str:
    """A directory name for an experiment: readable, and another one for another experiment."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:80]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
