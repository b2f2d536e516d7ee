"""Sends one run to MLflow: everything that MLflow shows of a run is put there by this module.

How much of the journal is sent is written in MLflow itself, in the tag `daypoint.shipped_bytes`; in an empty store a run
starts at 0. What was sent but not yet marked when a process died is sent again: a point keeps its key, step, time and value,
and MLflow stores an identical point once. So the courier, `daypoint sync` after a crash and a rebuild use the same code. This
module knows nothing of processes or of waiting; whoever has a `Shipment` has the lock on sending that run.
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
from daypoint.tracking.tags import TAG_LIMIT, Tags, fit

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

BATCH_POINTS = 999
"""Points in one call; MLflow takes 1,000."""

_CUT = "param is not whole here, but in the config artifact"
_PARAM_LIMIT = 6000


class DeletedRun(StoreError):
    """The run was deleted in MLflow. Somebody wanted that, so it is not created again."""


class Shipment:
    """The exclusive right to send one run to one store, and how far that has come.

    Call `Shipment.begin`, then `advance` until it returns False, then `finish`; `close` in any case. After an error from
    MLflow, close it and begin a new one, which asks MLflow how far the run really got.

    Attributes:
        uri: the store.
        run_id, experiment_id: the ids in MLflow.
        address: the run in daypoint, such as `20260328/141502-123456`.
        url: the run's page; without a server only its last part.
        points: metric points sent by this shipment.
        offset_bytes: how much of the journal is in MLflow.
        sweep: the directory of the sweep that the run is a job of; None if there is none.
        status: what MLflow shows when everything is there: FINISHED, FAILED or KILLED; RUNNING before.
    """

    def __init__(
        self, directory: Path, lock: int, client: MlflowClient, uri: str, artifacts: str | None
    ) -> None:
        self.directory = directory
        self.uri = uri
        self.points = 0
        self._lock = lock
        self._client = client
        self._record = identity.read_run(directory)
        self._files = RunFiles(directory, self._record["day"])
        self.address = day.address_in_day(directory, self._record["day"])
        # Where the sweep is now, not where the record says: a project may have been moved.
        is_job = (self._record.get("sweep") or {}).get("uid") and day.sweep_file(directory.parent).is_file()
        self.sweep = directory.parent if is_job else None
        run = self._find_or_create(artifacts)
        self.run_id: str = run.info.run_id
        self.experiment_id: str = run.info.experiment_id
        self.url = store.run_url(uri, self.experiment_id, self.run_id)
        self._tags = Tags(run.data.tags)
        self.offset_bytes = int(self._tags.get("daypoint.shipped_bytes", "0"))
        resumed = len(self._record["attempts"]) > 1
        self._fold = Fold(self._files.journal, self._tags.remark, self.offset_bytes if resumed else 0)
        self._complete(run)

    @classmethod
    def begin(cls, directory: Path, client: MlflowClient, uri: str, artifacts: str | None) -> Shipment | None:
        """Find or create the run in MLflow. None: another process is sending this run.

        Args:
            directory: the run directory, absolute.
            client: a client of the store at `uri`.
            uri: the store's address.
            artifacts: where a new experiment has its artifacts; None leaves it to the server.

        Raises:
            StoreError: the experiment or the run was deleted in MLflow.
            AddressError, RunError: there is no run in the directory, or it cannot be read.
            MlflowException: MLflow could not do it; trying again later may help.
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
        """What of the journal could not be read."""
        return self._tags.get("daypoint.damaged")

    # ------------------------------------------------------------ the run in MLflow

    def _find_or_create(self, artifacts: str | None) -> Run:
        from mlflow.entities import ViewType

        record, client = self._record, self._client
        uid = record["uid"]
        if not re.fullmatch(r"\w+", uid):
            raise RunError(f"{self._files.run}: expected a uid of hexadecimal digits, found {uid!r}")
        experiment_id = self._experiment(record["experiment"], artifacts)
        where = f"tags.`daypoint.uid` = '{uid}'"
        found = client.search_runs([experiment_id], where, run_view_type=ViewType.ALL, max_results=10)
        for run in found:
            if run.info.lifecycle_stage == "active":
                return run
        if found:
            run_id = found[0].info.run_id
            raise DeletedRun(
                f"run {self.address}: expected a live run in MLflow, found {run_id}, which was deleted there; restore "
                f"it with `MLFLOW_TRACKING_URI={shlex.quote(self.uri)} mlflow runs restore --run-id {run_id}`"
            )
        tags = self._first_tags()
        if self.sweep is not None:
            tags["mlflow.parentRunId"] = parent.find_or_create(client, experiment_id, self.sweep).info.run_id
        return client.create_run(experiment_id, record["started_ms"], tags, record["name"])

    def _experiment(self, name: str, artifacts: str | None) -> str:
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            location = f"{artifacts}/{_as_directory(name)}" if artifacts else None
            try:
                return self._client.create_experiment(name, artifact_location=location)
            except MlflowException:
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:  # it exists if another process was quicker
                    raise
        number, location = experiment.experiment_id, experiment.artifact_location
        store.refuse_unusable(self.uri, name, number, experiment.lifecycle_stage, location)
        return number

    def _first_tags(self) -> dict[str, str]:
        """The tags that a run is created with. They are not written again, because people edit the note."""
        record, first = self._record, self._record["attempts"][0]
        own = record.get("tags") or {}
        git, argv = first.get("git", record["git"]), first["argv"]
        commit, dirty = git["commit"], git["dirty"]
        sweep = record["sweep"]
        tags = {
            **{keys.mlflow_key(name): text for name, text in own.items()},
            "date": record["day"],
            "host": record["host"],
            "device": record["device"],
            "git.commit": commit,
            "git.dirty": None if dirty is None else str(dirty).lower(),
            "mlflow.source.git.commit": commit,
            "mlflow.source.name": argv[0] if argv else None,
            "mlflow.source.type": "LOCAL",
            "mlflow.user": record["user"],
            "mlflow.note.content": own.get("mlflow.note.content") or note.first_note(record, self.address),
            "daypoint.uid": record["uid"],
            "daypoint.run": self.address,
            "daypoint.directory": str(self.directory),
            "daypoint.reproduces": (record.get("reproduces") or {}).get("address"),
            "daypoint.sweep": f"{Path(sweep['directory']).name}/{sweep['job']}" if sweep else None,
            "daypoint.status": "RUNNING",
        }
        return {key: fit(str(text), TAG_LIMIT) for key, text in tags.items() if text is not None}

    def _complete(self, run: Run) -> None:
        """Send the params and the dataset that the run does not have yet; a resumed run is RUNNING again."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param

        params = []
        # MLflow cannot change a param, so it gets those of the first attempt, and remarks on the others.
        config = self._record.get("first_config", self._record["config"])
        for key, value in keys.flatten(config).items():
            text = fit(value, _PARAM_LIMIT)
            if text != value:
                self._tags.remark("daypoint.truncated", key, _CUT)
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

    # ------------------------------------------------------------ sending

    def advance(self) -> bool:
        """Send the next part of the journal. False: there was nothing to send.

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
        # Last, so that the mark never claims more than what is there.
        self._tags.set("daypoint.shipped_bytes", str(reading.end_bytes))
        self._tags.set("daypoint.status", "RUNNING")
        self._tags.send(self._client, self.run_id)
        self.points += len(points)
        self.offset_bytes = reading.end_bytes
        return True

    def finish(self, dead_pid: int | None = None) -> bool:
        """Send the final status and the files of a run whose journal is sent. False: the run goes on.

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
        self._tags.send(self._client, self.run_id)
        self.update_parent()
        return True

    def update_parent(self) -> None:
        """Update the parent run of the sweep, if this is one of its jobs."""
        if self.sweep is not None:
            parent.update(self._client, self.experiment_id, self.sweep)

    def draw(self) -> str | None:
        """Draw the pictures of a run that has ended, and of its sweep if that is over, unless MLflow has them.

        Returns:
            Why one could not be drawn.

        Raises:
            MlflowException: one did not arrive.
        """
        tags = {pictures.TAG: self._tags.get(pictures.TAG)}
        return pictures.draw_run(self._client, self.run_id, self.directory, tags) or self.draw_parent()

    def draw_parent(self) -> str | None:
        """As `draw`, of the sweep only."""
        return parent.draw(self._client, self.experiment_id, self.sweep) if self.sweep is not None else None

    def _tell_note(self, status: str) -> None:
        """Say on the run's page how it ended, unless somebody has edited the text there."""
        told, address = self._tags.get("mlflow.note.content"), self.address
        if told == note.first_note(self._record, address) or told.startswith(f"**{address}** "):
            record = identity.read_run(self.directory)
            self._tags.set("mlflow.note.content", note.final_note(self._files, record, address, status))

    def _remark_damage(self, damage: Damage) -> None:
        last = damage.offset_bytes + damage.length_bytes
        self._tags.remark("daypoint.damaged", f"bytes {damage.offset_bytes} to {last}", damage.reason)


def _lock(directory: Path) -> int | None:
    """Take the lock on sending a run, as a descriptor; None when another process has it. It ends with this process."""
    # A lock on the directory leaves no file behind; NFS needs a file that is open for writing.
    for path, flags in ((directory, os.O_RDONLY), (directory / ".courier.lock", os.O_RDWR | os.O_CREAT)):
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            if path != directory:
                raise
    return None


def _as_directory(name: str) -> str:
    """A directory name for an experiment: readable, and different for every experiment."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:80]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
