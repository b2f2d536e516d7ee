"""`daypoint.load("20260328")`: finds the trained model of an address and loads it.

**The day's model** is the best checkpoint, by the monitored metric, among the day's finished runs of one experiment. NaN
never wins, of equal values the later one does, runs made by `daypoint reproduce` do not compete, and `daypoint promote` pins
another one. A run's model is its best checkpoint, or its last one when nothing is monitored. This module reads run
directories only and never asks MLflow.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daypoint.base import day
from daypoint.base.errors import AddressError
from daypoint.record import catalog, shelf
from daypoint.record.catalog import StoredRun
from daypoint.record.pins import read_pins

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Chosen:
    """The checkpoint of an address.

    Attributes:
        path: the checkpoint directory.
        card: its identity card.
        run: its run; None when it was copied out of it.
    """

    path: Path
    card: dict[str, Any]
    run: StoredRun | None


def load(
    address: str | os.PathLike[str],
    *,
    model: torch.nn.Module | None = None,
    experiment: str | None = None,
    outputs: str | os.PathLike[str] | None = None,
    allow: Iterable[str] = (),
    full_verify: bool = False,
) -> torch.nn.Module:
    """The model of a day, a run, a sweep or a checkpoint, in eval mode on the CPU, its identity card in `model.card`.

    It is built from the card alone: nothing of the training has to be repeated, nothing is unpickled, and no random
    state changes.

    Args:
        address: `20260328`, `today`, `20260328/1415`, a run uid, or the path of a run or checkpoint directory.
        model: load the weights into this module instead of building one; for configs without a `model._target_`.
        experiment: which experiment's model, on a day that has several.
        outputs: the outputs directory; by default $DAYPOINT_OUTPUTS, else that of the project you stand in.
        allow: modules or dotted paths that the card may name as `_target_`, besides `daypoint.record.allowlist`'s.
        full_verify: check the content of every file before (0.6 s a GiB), not only the sizes.

    Raises:
        AddressError: it names no model, or several.
        CheckpointError: the checkpoint is damaged, or the model cannot be built from its card.
    """
    from daypoint.checkpoints import checkpoint
    from daypoint.models import rebuild

    where = day.outputs_directory(outputs)
    chosen = choose(os.fspath(address), where, experiment)
    if model is None:
        root = day.project_root(where)  # never what the run's own files say
        model = rebuild.build_model(chosen.card, root=root, allow=allow, where=str(chosen.path))
    card = checkpoint.load_weights(chosen.path, model, full_verify=full_verify)
    model.card = card  # type: ignore[assignment]
    return model.eval()


def choose(address: str, outputs: Path, experiment: str | None = None) -> Chosen:
    """The checkpoint of an address.

    Args:
        address: as in `load`.
        outputs: the directory of the days.
        experiment: among which runs, where the address names several.

    Raises:
        AddressError: it names no run or several, or none of them has a checkpoint.
        CheckpointError: it is the path of a damaged checkpoint.
    """
    path = Path(address).expanduser().absolute()
    if path.is_dir() and any(path.glob("model_*.json")):
        run = catalog.read(path.parents[1], outputs) if day.is_run(path.parents[1]) else None
        return Chosen(path, shelf.trusted_card(path, full=False), run)
    found = catalog.find(address, outputs)
    if experiment is not None:
        there = ", ".join(sorted({run.record["experiment"] for run in found}))
        found = [run for run in found if run.record["experiment"] == experiment]
        if not found:
            raise AddressError(f"experiment {experiment!r}: expected one of {there}, found no run of it")
    is_day = day.is_day(address)
    if len(found) == 1 and not is_day:
        return _of_run(found[0])
    sweeps = {(run.record["sweep"] or {}).get("directory") for run in found}
    if not is_day and (len(sweeps) > 1 or None in sweeps):
        return _of_run(catalog.find_one(address, outputs))  # raises the error that lists them
    return _best_of(address, found, outputs if is_day else None)


def _of_run(run: StoredRun) -> Chosen:
    path = shelf.best(run.files) or shelf.latest(run.files, full=False).path
    if path is None:
        raise AddressError(
            f"{run.address}: expected a checkpoint, found none that is whole in {run.files.checkpoints}; "
            "run.save(...) makes one"
        )
    return Chosen(path, shelf.read_card(path), run)


def _best_of(address: str, runs: Sequence[StoredRun], outputs: Path | None) -> Chosen:
    names = sorted({run.record["experiment"] for run in runs})
    if len(names) > 1:
        raise AddressError(
            f'{address}: expected runs of one experiment, found {", ".join(names)}; say which with experiment="NAME", '
            "or give the address of a run"
        )
    if outputs is not None and (chosen := _pinned(runs, outputs)) is not None:
        return chosen
    candidates = []
    for run in runs:
        if run.status == "FINISHED" and not run.record.get("reproduces"):
            with contextlib.suppress(AddressError):  # a run that saved nothing is no candidate
                candidates.append(_of_run(run))
    if not candidates:
        found = ", ".join(
            f"{run.address} {'(a reproduction) ' * bool(run.record.get('reproduces'))}{run.status}"
            for run in runs[-5:]
        )
        raise AddressError(
            f"{address}: expected a finished run with a checkpoint, found {found}; give the address of a run"
        )
    ranked = shelf.by_metric([(each, each.card) for each in candidates if each.card["monitor"]])
    return ranked[-1][0] if ranked else candidates[-1]


def _pinned(runs: Sequence[StoredRun], outputs: Path) -> Chosen | None:
    pin = read_pins(outputs, runs[0].record["day"]).get(runs[0].record["experiment"])
    if pin is None:
        return None
    for run in runs:
        if run.record["uid"] == pin["uid"]:
            path = run.files.checkpoints / pin["checkpoint"]
            return Chosen(path, shelf.trusted_card(path, full=False), run)
    raise AddressError(
        f"{runs[0].record['day']}: expected the promoted run {pin['uid']}, found no run of that day with this uid; "
        "promote another with `daypoint promote ADDRESS`"
    )
