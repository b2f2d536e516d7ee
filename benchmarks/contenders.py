"""All contenders by name, daypoint among them.

`python contenders.py CONTENDER PROJECT HANDLE` prints what is on disk, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import peers
from contender import METRICS, Contender, List, Nothing, Points, mlflow_points


class Daypoint(Contender):
    title = "daypoint"
    imports = "daypoint"
    enabled = True

    def open(self, project: Path, name: str) -> str:
        import daypoint

        # Where they would be by themselves, if this script lay in the project.
        uri, outputs = f"sqlite:///{project}/mlruns/mlflow.db", str(project / "outputs")
        tracking = {
            "enabled": self.enabled,
            "uri": uri,
            "outputs": outputs,
            "experiment": "overhead",
            "name": name,
        }
        self.context = daypoint.open_run({"lr": 0.1, "tracking": tracking})
        self.run = self.context.__enter__()
        return json.dumps([str(self.run.directory), self.run.uid])

    def log(self, step, loss, lr, norm):
        self.run.log(loss=loss, lr=lr, grad_norm=norm)

    def close(self) -> None:
        self.context.__exit__(None, None, None)

    def read(self, project: Path, handle: str) -> Points:
        """What has arrived in the MLflow store."""
        _, uid = json.loads(handle)
        return mlflow_points(project / "mlruns" / "mlflow.db", "daypoint.uid", uid)


class DaypointAlone(Daypoint):
    title = "daypoint, tracking off"
    enabled = False

    def read(self, project: Path, handle: str) -> Points:
        """What is in the journal."""
        from daypoint.record import journal, spool

        directory, _ = json.loads(handle)
        spool.recover(Path(directory) / "journal.spool", Path(directory) / "journal.jsonl")
        batches = [e for e in journal.read(Path(directory) / "journal.jsonl").events if e["event"] == "batch"]
        return {name: [[b["step"], b["metrics"][name]] for b in batches] for name in METRICS}


class DaypointBar(Daypoint):
    """On a terminal, where `run.epochs` shows its progress bar."""

    title = "daypoint, with the bar on a terminal"

    def open(self, project: Path, name: str) -> str:
        terminal, ours = os.openpty()
        self.screen = subprocess.Popen(["cat"], stdin=terminal, stdout=subprocess.DEVNULL)
        os.close(terminal)
        sys.stderr = os.fdopen(ours, "w")
        handle = super().open(project, name)
        self.epochs = self.run.epochs(1)
        next(self.epochs)
        return handle

    def close(self) -> None:
        self.epochs.close()
        super().close()
        sys.stderr.close()
        self.screen.wait()


CONTENDERS: dict[str, type[Contender]] = {
    "none": Nothing,
    "list": List,
    "daypoint": Daypoint,
    "daypoint-alone": DaypointAlone,
    "daypoint-bar": DaypointBar,
    "mlflow": peers.Mlflow,
    "mlflow-async": peers.MlflowAsync,
    "mlflow-batch": peers.MlflowBatch,
    "tensorboard": peers.Tensorboard,
    "wandb": peers.Wandb,
    "dvclive": peers.Dvclive,
    "trackio": peers.Trackio,
    "aim": peers.Aim,
}


if __name__ == "__main__":
    contender, project, handle = sys.argv[1:]
    found = CONTENDERS[contender]().read(Path(project), handle)
    print("\n" + json.dumps({name: found.get(name, []) for name in METRICS}))
