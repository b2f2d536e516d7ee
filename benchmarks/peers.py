"""The peers: each is used as its own quick start shows it, with its default settings, unless the class says otherwise.

`read` looks at what is on disk with the peer's own reader where it has one.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from pathlib import Path

from contender import METRICS, Contender, Points, mlflow_points, rows


class Mlflow(Contender):
    title = "`mlflow.log_metrics`"
    imports = "mlflow"

    def open(self, project: Path, name: str) -> str:
        import mlflow

        self.mlflow = mlflow
        mlflow.set_tracking_uri(f"sqlite:///{project}/mlflow.db")
        mlflow.set_experiment("overhead")
        self.run = mlflow.start_run(run_name=name)
        return name

    def log(self, step, loss, lr, norm):
        self.mlflow.log_metrics({"loss": loss.item(), "lr": lr, "grad_norm": norm.item()}, step=step)

    def close(self) -> None:
        self.mlflow.end_run()

    def read(self, project: Path, handle: str) -> Points:
        return mlflow_points(project / "mlflow.db", "mlflow.runName", handle)


class MlflowAsync(Mlflow):
    """Its queue is flushed before the end, as its documentation advises."""

    title = "MLflow, async logging"
    burst_seconds = 0.1

    def log(self, step, loss, lr, norm):
        values = {"loss": loss.item(), "lr": lr, "grad_norm": norm.item()}
        self.mlflow.log_metrics(values, step=step, synchronous=False)

    def close(self) -> None:
        self.mlflow.flush_async_logging()
        self.mlflow.end_run()


class MlflowBatch(Mlflow):
    """A buffer by hand: `log_batch` whenever the 1,000 points that a request may hold have come together."""

    title = "MLflow `log_batch`, buffered"

    def open(self, project: Path, name: str) -> str:
        handle = super().open(project, name)
        from mlflow.entities import Metric

        self.metric, self.client, self.buffer = Metric, self.mlflow.MlflowClient(), []
        return handle

    def log(self, step, loss, lr, norm):
        now = int(time.time() * 1000)
        for name, value in (("loss", loss.item()), ("lr", lr), ("grad_norm", norm.item())):
            self.buffer.append(self.metric(name, value, now, step))
        if len(self.buffer) >= 999:
            self.flush()

    def flush(self) -> None:
        self.client.log_batch(self.run.info.run_id, metrics=self.buffer)
        self.buffer = []

    def close(self) -> None:
        if self.buffer:
            self.flush()
        super().close()


class Tensorboard(Contender):
    title = "TensorBoard `SummaryWriter`"
    packages = ("tensorboard",)
    imports = "tensorboard"

    def open(self, project: Path, name: str) -> str:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(project / "runs" / name)
        return name

    def log(self, step, loss, lr, norm):
        self.writer.add_scalar("loss", loss.item(), step)
        self.writer.add_scalar("lr", lr, step)
        self.writer.add_scalar("grad_norm", norm.item(), step)

    def close(self) -> None:
        self.writer.close()

    def read(self, project: Path, handle: str) -> Points:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(project / "runs" / handle), size_guidance={"scalars": 0})
        events.Reload()
        found = events.Tags()["scalars"]
        return {name: [[e.step, e.value] for e in events.Scalars(name)] for name in METRICS if name in found}


class Wandb(Contender):
    title = "W&B, offline"
    packages = ("wandb",)
    imports = "wandb"

    def open(self, project: Path, name: str) -> str:
        import wandb

        self.run = wandb.init(project="overhead", name=name, mode="offline", dir=project)
        return str(Path(self.run.dir).parent)

    def log(self, step, loss, lr, norm):
        self.run.log({"loss": loss, "lr": lr, "grad_norm": norm}, step=step)

    def close(self) -> None:
        self.run.finish()

    def read(self, project: Path, handle: str) -> Points:
        from wandb.proto.wandb_internal_pb2 import Record

        points: Points = {name: [] for name in METRICS}
        (file,) = Path(handle).glob("run-*.wandb")
        for content in _leveldb_records(file.read_bytes()):
            record = Record()
            record.ParseFromString(content)
            if record.WhichOneof("record_type") == "history":
                step = record.history.step.num
                for item in record.history.item:
                    name = item.key or ".".join(item.nested_key)
                    if name in points:
                        points[name].append([step, json.loads(item.value_json)])
        return points


class Dvclive(Contender):
    title = "DVCLive"
    packages = ("dvclive",)
    imports = "dvclive"

    def open(self, project: Path, name: str) -> str:
        from dvclive import Live

        self.live = Live(str(project / name), save_dvc_exp=False)  # there is no Git repository here
        return name

    def log(self, step, loss, lr, norm):
        self.live.log_metric("loss", loss.item())
        self.live.log_metric("lr", lr)
        self.live.log_metric("grad_norm", norm.item())
        self.live.next_step()

    def close(self) -> None:
        self.live.end()

    def read(self, project: Path, handle: str) -> Points:
        points: Points = {}
        for name in METRICS:
            path = project / handle / "plots" / "metrics" / f"{name}.tsv"
            lines = path.read_text().splitlines()[1:] if path.exists() else []
            rows = [line.split("\t") for line in lines]
            points[name] = [[int(row[0]), float(row[1])] for row in rows if len(row) == 2 and row[1]]
        return points


class Trackio(Contender):
    title = "Trackio"
    packages = ("trackio",)
    imports = "trackio"

    def open(self, project: Path, name: str) -> str:
        os.environ["TRACKIO_DIR"] = str(project)
        import trackio

        self.trackio = trackio
        trackio.init(project="overhead", name=name)
        return name

    def log(self, step, loss, lr, norm):
        self.trackio.log({"loss": loss.item(), "lr": lr, "grad_norm": norm.item()}, step=step)

    def close(self) -> None:
        self.trackio.finish()

    def read(self, project: Path, handle: str) -> Points:
        statement = "SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY id"
        points: Points = {name: [] for name in METRICS}
        for step, text in rows(project / "overhead.db", statement, handle):
            for name, value in json.loads(text).items():
                if name in points:
                    points[name].append([step, value])
        return points


class Aim(Contender):
    title = "Aim"
    packages = ("aim",)
    imports = "aim"

    def open(self, project: Path, name: str) -> str:
        from aim import Run

        self.run = Run(repo=str(project), experiment="overhead")
        return self.run.hash

    def log(self, step, loss, lr, norm):
        self.run.track(loss.item(), name="loss", step=step)
        self.run.track(lr, name="lr", step=step)
        self.run.track(norm.item(), name="grad_norm", step=step)

    def close(self) -> None:
        self.run.close()

    def read(self, project: Path, handle: str) -> Points:
        from aim import Repo, Run

        repo = Repo(str(project))
        repo._recreate_index()  # what `aim storage reindex` does; without it a script sees no metric
        points: Points = {}
        run = Run(handle, repo=repo, read_only=True)
        for name, context, _ in run.iter_metrics_info():
            if name in METRICS:
                steps, columns = run.get_metric(name, context).data.items_list()
                points[name] = [list(pair) for pair in zip(steps, columns[0], strict=True)]
        return points


def _leveldb_records(content: bytes) -> list[bytes]:
    """The whole records of a W&B file: LevelDB's log format (blocks of 32 KiB, fragments with a checksum), after 7 bytes of
    header. Read here because wandb itself no longer has a reader in Python."""
    records, parts, at = [], b"", 7
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        checksum, length = (
            int.from_bytes(content[at : at + 4], "little"),
            int.from_bytes(content[at + 4 : at + 6], "little"),
        )
        kind, body = content[at + 6], content[at + 7 : at + 7 + length]
        if (
            kind not in (1, 2, 3, 4)
            or len(body) < length
            or zlib.crc32(content[at + 6 : at + 7 + length]) != checksum
        ):
            break
        at += 7 + length
        parts = body if kind in (1, 2) else parts + body  # 1 whole, 2 first, 3 middle, 4 last
        if kind in (1, 4):
            records.append(parts)
    return records
