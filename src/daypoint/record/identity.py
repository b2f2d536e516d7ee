"""The identity of runs and checkpoints: run.json, the hash of a config, and the identity card of a checkpoint.

A card says what a checkpoint is (the run, the step, every hyperparameter, the metrics at that moment, the
code) and lists size and SHA-256 of the files beside it. Its own hash covers everything else in it, so that an
edited value is noticed. The hash guards against accidents and careless edits; it is not a signature.

This module imports neither torch nor mlflow nor hydra, so that listing runs stays fast. It knows no tensor.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import orjson

from daypoint.base import day, files
from daypoint.base.errors import AddressError, CheckpointError, RunError
from daypoint.record import documents

RUN_FORMAT = "daypoint/run/1"
CARD_FORMAT = "daypoint/card/1"
IGNORED = (
    "debug",
    "hydra",
    "resume",
    "sweep",
    "tracking",
    "trainer.device",
    "trainer.keep",
    "trainer.save_every",
)
"""Config keys that leave the result of a training as it is: where it is recorded, shown and computed."""

_DAY = re.compile(r"\d{8}")
_NEEDED: dict[str, type] = {
    "uid": str,
    "day": str,
    "attempt": int,
    "step": int,
    "config": dict,
    "config_sha256": str,
    "config_ignored": list,
    "metrics": dict,
    "files": dict,
}


# ---------------------------------------------------------------- run.json


def write_run(directory: Path, record: dict[str, Any]) -> None:
    """Replace the run.json of a run directory, atomically.

    Raises:
        TypeError: the record holds something other than plain data.
    """
    files.write_atomic(directory / "run.json", files.dumps(record))


def read_run(directory: Path) -> dict[str, Any]:
    """The run.json of a run directory.

    Raises:
        AddressError: there is none, so this is no run.
        RunError: it is damaged, too large to be one, or written by a later daypoint.
    """
    path = directory / "run.json"
    try:
        return documents.read(path, "a run record", RUN_FORMAT, {"uid": str}, error=RunError)
    except (FileNotFoundError, NotADirectoryError):
        raise AddressError(f"{directory}: expected a run directory, found no run.json in it") from None


# ---------------------------------------------------------------- where the project is


def project_then_and_now(directory: Path, record: Mapping[str, Any]) -> tuple[Path, Path]:
    """The project of a run: where it was when the run was recorded, and where it is now, moved or copied since then.

    Args:
        directory: the run directory, absolute.
        record: its run.json.
    """
    place = record.get("place") or {"root": record["root"], "directory": _directory_then(directory, record)}
    root, was = Path(place["root"]), Path(place["directory"])
    if was == directory:
        return root, root
    if was.is_relative_to(root):
        inside = was.relative_to(root).parts
        if directory.parts[-len(inside) :] == inside:
            return root, directory.parents[len(inside) - 1]
    if root.exists():
        return root, root  # the run alone was moved, or the outputs never were in the project
    return root, day.project_root(directory if was.is_relative_to(root) else Path.cwd())


def _directory_then(directory: Path, record: Mapping[str, Any]) -> Path:
    """Where a run of daypoint 0.1.0, which did not record it, was filed."""
    root, outputs = Path(record["root"]), day.outputs_of(directory, record["day"])
    if outputs is None:
        return directory
    setting = (record.get("config", {}).get("tracking") or {}).get("outputs") or "outputs"
    return root / Path(setting).expanduser() / directory.relative_to(outputs)


# ---------------------------------------------------------------- the hash of a config


def config_sha256(config: Mapping[str, Any], ignored: Sequence[str] = IGNORED) -> str:
    """The hash of what matters in a resolved config: equal for two configs that ask for the same training.

    The order of keys and the way a number was written do not matter (1e-5 and 0.00001 are one float), nor
    whether a sequence is a list or a tuple. The type of a number does: to many libraries 1 and 1.0 mean
    different things (and a typed schema has made them one already).

    Args:
        config: plain data, secrets redacted, so that whoever has the card can compute it again.
        ignored: dotted paths to leave out, with everything below them.

    Raises:
        TypeError: something in it is not plain data; says where.
    """
    return hashlib.sha256(_canonical(_without(config, "", frozenset(ignored)))).hexdigest()


def _without(config: Mapping[str, Any], prefix: str, ignored: frozenset[str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if path not in ignored:
            kept[key] = _without(value, f"{path}.", ignored) if isinstance(value, Mapping) else value
    return kept


def _canonical(value: Any) -> bytes:
    """The same bytes for the same data, whatever the order of keys and the layout of the file it came from."""
    return orjson.dumps(orjson.loads(files.dumps(value, indent=False)), option=orjson.OPT_SORT_KEYS)


# ---------------------------------------------------------------- the identity card


def make_card(
    record: Mapping[str, Any],
    *,
    step: int,
    epoch: int | None,
    attempt: int,
    metrics: Mapping[str, bool | int | float],
    parent: Mapping[str, Any] | None,
    device: str | None = None,
) -> dict[str, Any]:
    """The card of a checkpoint that is taken now. `seal` adds the files and makes it final.

    Args:
        record: the run's run.json; its config has its secrets redacted already.
        step: how many steps are done.
        metrics: Python numbers by name.
        parent: `reference` of the checkpoint that this training went on from.
        device: where the model is, such as `cuda:0`; by default what the record says.
    """
    moment = day.now(record["timezone"])
    config = record["config"]
    return {
        "format": CARD_FORMAT,
        "uid": record["uid"],
        "name": record["name"],
        "experiment": record["experiment"],
        "day": record["day"],
        "attempt": attempt,
        "step": step,
        "epoch": epoch,
        "time": moment.isoformat(),
        "time_utc": moment.astimezone(UTC).isoformat(),
        "timezone": record["timezone"],
        "metrics": dict(metrics),
        "monitor": record.get("monitor"),
        "config": config,
        "config_sha256": config_sha256(config),
        "config_ignored": list(IGNORED),
        "seed": record["seed"] if "seed" in record else (config.get("trainer") or {}).get("seed"),
        "data": record.get("data"),
        "git": record.get("git"),
        "code": record.get("code"),
        "versions": record.get("versions"),
        "host": record.get("host"),
        "device": device or record.get("device"),
        "parent": None if parent is None else dict(parent),
    }


def seal(card: Mapping[str, Any], listed: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The final card, as it is written.

    Args:
        card: from `make_card`.
        listed: for the name of each file beside it, its "bytes" and "sha256".

    Raises:
        TypeError: something in the card is not plain data; says where.
    """
    final = {
        **card,
        "metrics": files.encode_metrics(card["metrics"]),
        "files": {n: dict(f) for n, f in listed.items()},
    }
    return files.dumps({**final, "card_sha256": hashlib.sha256(_canonical(final)).hexdigest()})


def read_card(path: Path) -> dict[str, Any]:
    """A card, its seal and its config hash checked, metrics as numbers.

    Raises:
        CheckpointError: there is none, or it is not as it was written; says in what way.
    """
    try:
        card = documents.read(path, "an identity card", CARD_FORMAT, _NEEDED, error=CheckpointError)
    except OSError as error:
        raise CheckpointError(f"{path}: the identity card cannot be read: {error.strerror}") from error
    content = {key: value for key, value in card.items() if key != "card_sha256"}
    is_config_whole = config_sha256(card["config"], card["config_ignored"]) == card["config_sha256"]
    if hashlib.sha256(_canonical(content)).hexdigest() != card.get("card_sha256"):
        edited = "; among what changed is a hyperparameter (config_sha256 does not match either)"
        raise CheckpointError(
            f"{path}: the card was edited or damaged after it was written{'' if is_config_whole else edited}"
        )
    if bad := _ill_formed(card):
        raise CheckpointError(f"{path}: the card has no proper {bad}; daypoint did not write it")
    if not is_config_whole:
        raise CheckpointError(f"{path}: config_sha256 is not the hash of the config in this card")
    return {**card, "metrics": files.decode_metrics(card["metrics"])}


def _ill_formed(card: Mapping[str, Any]) -> str | None:
    """The first entry that readers rely on and cannot. (Anybody can make a seal: it does not vouch for these.)"""
    if not _DAY.fullmatch(card["day"]):  # it becomes part of file names
        return "day"
    if any(
        type(of) is not dict or documents.lacking(of, {"bytes": int, "sha256": str})
        for of in card["files"].values()
    ):
        return "files"
    try:
        values = files.decode_metrics(card["metrics"]).values()
    except ValueError:
        return "metrics"
    if not all(type(value) in (bool, int, float) for value in values):
        return "metrics"
    monitor = card.get("monitor")
    proper = monitor is None or (type(monitor) is dict and type(monitor.get("metric")) is str)
    return None if proper else "monitor"


def reference(card: Mapping[str, Any], path: str | None = None) -> dict[str, Any]:
    """What another card's `parent` says about this card's checkpoint."""
    keys = ("uid", "day", "attempt", "step", "card_sha256")
    return {key: card[key] for key in keys} | {"path": path}
