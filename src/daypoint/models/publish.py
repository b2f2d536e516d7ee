"""Publishing: from an address to a model that MLflow serves; packaged, sent, and perhaps the day's.

Packaging another run of a day makes a version of the registered model, but the alias of the day stays with
the day's model, which is the best one or the one that `promote` pinned. What is decided here is written down
in the day's directory before MLflow hears of it, so a server that is away only delays it. One number:
`daypoint package` takes 7 s of CPU, most of it to import torch and mlflow.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daypoint.base import day
from daypoint.base.day import PackageFiles
from daypoint.base.errors import AddressError, DaypointError, PackageError
from daypoint.models import load
from daypoint.models.load import Chosen
from daypoint.record import allowlist, catalog, manifest, pins
from daypoint.tracking import sync
from daypoint.tracking.registry import Registered


@dataclass(frozen=True)
class Published:
    """A packaged model and where it is.

    Attributes:
        chosen: the checkpoint.
        package: the MLflow model directory.
        facts: its manifest.
        registered: where it is in MLflow; None when it is not there.
        uri: the MLflow store; None when tracking is off.
        complaint: why it is not in MLflow, in words.
        alias_holder: who has the day's alias instead, in words; None when this model has it.
    """

    chosen: Chosen
    package: Path
    facts: dict[str, Any]
    registered: Registered | None
    uri: str | None
    complaint: str | None
    alias_holder: str | None

    @property
    def lines(self) -> list[str]:
        """What was made, and the commands that work from any directory."""
        facts = self.facts
        measured = "" if facts["value"] is None else f", {facts['metric']} {facts['value']:.6g}"
        size = manifest.size_bytes(self.package) / 1e6
        assert self.chosen.run is not None
        lines = [
            f"model    {self.chosen.run.address} step {facts['step']}{measured}",
            f"package  {self.package}  ({facts['kind']}, {size:.2f} MB, answers within {facts['difference']:.1g} "
            "of the checkpoint's own)",
        ]
        if facts["reason"]:
            lines.append(f"         from code, not pt2, because {facts['reason']}")
        if self.registered is not None:
            lines.append(
                f"mlflow   registered model {self.registered.name}, version {self.registered.version}: "
                f"{self.registered.uri}"
            )
        elif self.complaint:
            lines.append(f"mlflow   {self.complaint}")
        if self.alias_holder:
            lines.append(
                f"alias    {facts['day']} stays with {self.alias_holder}; to give it to this one: "
                f"daypoint promote {self.chosen.run.address}"
            )
        example = PackageFiles(self.package).serving_example
        model_uri = self.registered.uri if self.registered is not None else str(self.package)
        prefix = f"MLFLOW_TRACKING_URI={shlex.quote(_printable(self.uri))} " if self.registered else ""
        command, quoted = f"{prefix}mlflow models", shlex.quote(model_uri)
        lines.append(
            f"predict  {command} predict -m {quoted} -i {shlex.quote(str(example))} --env-manager local"
        )
        if facts["columns"]:
            lines.append(
                '         or -i FILE.csv -t csv, with whole numbers written as "30.0" (serve takes 30 too)'
            )
        lines.append(f"serve    {command} serve -m {quoted} --env-manager local --port 5001")
        return lines


@dataclass(frozen=True)
class Publication:
    """What came of publishing an address.

    Attributes:
        published: at least one; of a day one for each experiment whose model can be packaged.
        complaints: the other experiments of the day, and why not, in words.
    """

    published: list[Published]
    complaints: list[str]


def publish(
    address: str,
    outputs: Path,
    *,
    experiment: str | None = None,
    uri: str | None = None,
    example: Path | None = None,
    allow: Iterable[str] = (),
) -> Publication:
    """Package the model that an address names and send it to MLflow; one for each experiment of a day.

    Args:
        address: a day, a run, a sweep, or the path of a checkpoint in its run.
        outputs: the directory of the days.
        experiment: which experiment's model of a day.
        uri: another MLflow store than the one the run was made for, absolute.
        example: a .npy file with inputs [batch, …], for a config without data.input_shape.
        allow: modules or dotted paths that the card may name as `_target_`, besides `daypoint.record.allowlist`'s.

    Raises:
        AddressError: there is no model of that address.
        PackageError, CheckpointError: it cannot be packaged; of a day with several experiments, none of them can.
    """

    def publish_one(where: str, name: str | None) -> Published:
        return _publish(load.choose(where, outputs, name), outputs, uri, example, tuple(allow))

    names = [] if experiment is not None else _experiments(address, outputs)
    if len(names) < 2:
        return Publication([publish_one(address, experiment)], [])
    published, complaints = [], []
    for name in names:  # one that cannot be packaged must not keep the others from it
        try:
            published.append(publish_one(address, name))
        except DaypointError as error:
            complaints.append(f"{name}: {error}")
    if not published:
        raise PackageError("\n  ".join([f"{address}: no model of that day can be packaged", *complaints]))
    return Publication(published, complaints)


def promote(
    address: str, outputs: Path, *, experiment: str | None = None, uri: str | None = None
) -> Published:
    """Make a run's checkpoint the model of its day, whatever others measured; package it if it is not.

    Arguments and errors as in `publish`.
    """
    chosen = load.choose(address, outputs, experiment)
    if chosen.run is None or day.outputs_of(chosen.path, chosen.card["day"]) != outputs:
        raise AddressError(f"{address}: expected a run of a day in {outputs}, found {chosen.path}")
    pins.pin(
        outputs,
        chosen.card["day"],
        chosen.card["experiment"],
        uid=chosen.card["uid"],
        checkpoint=chosen.path.name,
    )
    return _publish(chosen, outputs, uri, None, ())


def _experiments(address: str, outputs: Path) -> list[str]:
    """The experiments of a day; of another address none."""
    if not day.is_day(address):
        return []
    return sorted({run.record["experiment"] for run in catalog.list_runs(outputs, day.parse_day(address))[0]})


def _publish(
    chosen: Chosen, outputs: Path, uri: str | None, example: Path | None, allow: tuple[str, ...]
) -> Published:
    from daypoint.models import package  # torch, which a mistyped address should not wait for

    here = allowlist.of_project(day.project_root(Path.cwd()))
    facts = package.package(chosen, root=day.project_root(outputs), example=example, allow=(*here, *allow))
    run = chosen.run
    assert run is not None
    days_model = _days_model(chosen, outputs)
    if days_model is not None and days_model.path == chosen.path:
        pins.give_alias(
            outputs, facts["day"], facts["experiment"], uid=facts["uid"], card_sha256=facts["card_sha256"]
        )
    address = uri or sync.store_of(run.directory, run.record)[0]
    if address is None:
        complaint = (
            "not registered: the run was made with tracking.enabled=false; --uri sends it all the same"
        )
        return Published(chosen, run.files.package, facts, None, None, complaint, None)
    sent = sync.sync([run.directory], uri=uri).runs[0]
    complaint = None
    if sent.model is None:
        complaint = f"not registered yet: {sent.text}; try again with: daypoint sync {shlex.quote(str(run.directory))}"
    return Published(
        chosen,
        run.files.package,
        facts,
        sent.model,
        address,
        complaint,
        _holder(sent.model, facts, days_model, outputs),
    )


def _days_model(chosen: Chosen, outputs: Path) -> Chosen | None:
    """The model of the day of a checkpoint; None when that has none, or the run lies elsewhere."""
    if day.outputs_of(chosen.path, chosen.card["day"]) != outputs:
        return None
    try:
        return load.choose(chosen.card["day"], outputs, chosen.card["experiment"])
    except AddressError:
        return None


def _holder(
    registered: Registered | None, facts: dict[str, Any], days_model: Chosen | None, outputs: Path
) -> str | None:
    if registered is None or registered.alias is not None or days_model is None or days_model.run is None:
        return None
    with pins.held_aliases(outputs, facts["day"]) as aliases:
        held = aliases.get(facts["experiment"])
    best = days_model.run.address
    if held is None:
        return f"nobody; the day's model is {best}, not packaged yet"
    if held["uid"] == days_model.card["uid"]:
        return f"{best}, the day's model"
    return f"the run {held['uid']}, although the day's model is {best} now"


def _printable(uri: str | None) -> str:
    """Without the password that may stand in it."""
    return re.sub("//[^/@]*@", "//", uri or "")
