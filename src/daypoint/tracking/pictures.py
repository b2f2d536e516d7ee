"""Draws the pictures that MLflow shows: the learning curves of a run, `curves.png`, and the result of a sweep, `sweep.png`.

They are drawn when everything else is in MLflow and whoever waited for that was told, because importing matplotlib takes
longer than all the rest. The tag `daypoint.picture` says which state of the run was drawn: what exists is not drawn again,
what is missing is drawn by the next `daypoint sync`, and a run that went on gets a new picture. Why a picture cannot be drawn
is written in that tag, and nothing else fails because of it. This module knows nothing of the courier.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daypoint.base import day
from daypoint.base.day import RunFiles
from daypoint.record import identity

if TYPE_CHECKING:
    from mlflow import MlflowClient

TAG = "daypoint.picture"


def draw_run(client: MlflowClient, run_id: str, directory: Path, tags: Mapping[str, str]) -> str | None:
    """Draw the learning curves of a run that has ended, unless that was done already.

    Args:
        directory: the run directory.
        tags: those that MLflow has.

    Returns:
        Why it could not be drawn; None if it is there.

    Raises:
        MlflowException: it did not arrive.
    """
    record = identity.read_run(directory)
    run_files = RunFiles(directory, record["day"])
    shows = str(run_files.journal.stat().st_size if run_files.journal.exists() else 0)

    def draw(path: Path) -> None:
        from daypoint.plots import curves, curves_figure

        address = day.address_in_day(directory, record["day"])
        run = curves.load(run_files, record, address=address, status=record["status"])
        curves_figure.draw_curves([run], list(run.curves) or curves.default_metrics(record) or ["loss"], path)

    return _send(client, run_id, "curves.png", shows, draw, tags)


def draw_sweep(
    client: MlflowClient, run_id: str, manifest: Mapping[str, Any], shows: str, tags: Mapping[str, str]
) -> str | None:
    """Draw the values of the jobs of a sweep that is over, unless that was done already. As `draw_run`.

    Args:
        manifest: the content of sweep.json.
        shows: what tells this state of the sweep from others.
    """

    def draw(path: Path) -> None:
        from daypoint.plots import sweep

        sweep.draw_sweep(manifest, path)

    return _send(client, run_id, "sweep.png", shows, draw, tags)


def _send(
    client: MlflowClient,
    run_id: str,
    name: str,
    shows: str,
    draw: Callable[[Path], None],
    tags: Mapping[str, str],
) -> str | None:
    if tags.get(TAG, "").partition(":")[0] == shows:
        return None
    complaint = None
    with tempfile.TemporaryDirectory(prefix="daypoint-") as directory:
        path = Path(directory) / name
        try:
            draw(path)
        except Exception as error:  # whatever a drawing library may raise
            complaint = f"{name} cannot be drawn: {type(error).__name__}: {error}"[:500]
        else:
            client.log_artifact(run_id, str(path))
    client.set_tag(run_id, TAG, shows if complaint is None else f"{shows}: {complaint}")
    return complaint
