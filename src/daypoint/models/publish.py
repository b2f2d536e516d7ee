"""`daypoint package` and `daypoint promote`: make the model of an address one that MLflow serves.

Packaging another run of a day adds a version of the registered model, but the alias of the day stays with the day's model:
the best one, or the one that `promote` pinned. The decision is written into the day's directory before MLflow is told, so a
store that is away only delays it. This module knows neither torch nor how a package is made.
"""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daypoint.base import day
from daypoint.base.day import PackageFiles
from daypoint.base.errors import AddressError, DaypointError, PackageError
from daypoint.models import load
from daypoint.models.load import Chosen
from daypoint.record import allowlist, catalog, manifest, pins
from daypoint.record.catalog import StoredRun
from daypoint.tracking import store, sync
from daypoint.tracking.registry import Registered


@dataclass(frozen=True)
class Published:
    """A packaged model and where it is.

    Attributes:
        run: the run of its checkpoint.
        facts: the manifest of the package.
        uri: the MLflow store; None when tracking is off.
        registered: where it is in MLflow; None when it is not there.
        complaint: why it is not in MLflow.
        alias_holder: who has the day's alias; None when this model has it.
    """

    run: StoredRun
    facts: dict[str, Any]
    uri: str | None
    registered: Registered | None
    complaint: str | None
    alias_holder: str | None

    @property
    def lines(self) -> list[str]:
        """What was made, and commands that work from any directory."""
        facts, registered, package = self.facts, self.registered, self.run.files.package
        measured = "" if facts["value"] is None else f", {facts['metric']} {facts['value']:.6g}"
        size = f"{manifest.size_bytes(package) / 1e6:.2f} MB"
        within = f"answers within {facts['difference']:.1g} of the checkpoint's own"
        lines = [
            f"model    {self.run.address} step {facts['step']}{measured}",
            f"package  {package}  ({facts['kind']}, {size}, {within})",
        ]
        if facts["reason"]:
            lines.append(f"         from code, not pt2, because {facts['reason']}")
        if registered is not None:
            name = f"registered model {registered.name}, version {registered.version}"
            lines.append(f"mlflow   {name}: {registered.uri}")
        elif self.complaint:
            lines.append(f"mlflow   {self.complaint}")
        if self.alias_holder:
            again = f"to give it to this one: daypoint promote {self.run.address}"
            lines.append(f"alias    {facts['day']} stays with {self.alias_holder}; {again}")
        command, model = "mlflow models", shlex.quote(str(package))
        if registered is not None:
            address = shlex.quote(store.without_password(self.uri or ""))
            command = f"MLFLOW_TRACKING_URI={address} {command}"
            model = shlex.quote(registered.uri)
        example = shlex.quote(str(PackageFiles(package).serving_example))
        lines.append(f"predict  {command} predict -m {model} -i {example} --env-manager local")
        if facts["columns"]:
            lines.append(
                '         or -i FILE.csv -t csv, with whole numbers written as "30.0" (serve takes 30 too)'
            )
        lines.append(f"serve    {command} serve -m {model} --env-manager local --port 5001")
        return lines


@dataclass(frozen=True)
class Publication:
    """The models of an address.

    Attributes:
        published: at least one; of a day one for each experiment whose model can be packaged.
        complaints: the other experiments of the day, and why their models cannot be packaged.
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
) -> Publication:
    """Package the model that an address names and send it to MLflow; one for each experiment of a day.

    Args:
        address: a day, a run, a sweep, or the path of a checkpoint in its run.
        outputs: the directory of the days.
        experiment: which experiment's model of a day.
        uri: another MLflow store than the one the run was made for, absolute.
        example: a .npy file with inputs [batch, …], for a config without data.input_shape.

    Raises:
        AddressError: there is no model of that address.
        PackageError, CheckpointError: it cannot be packaged; of a day with several experiments, none of them can.
    """

    names: list[str | None] = [experiment]
    if experiment is None and day.is_day(address):
        runs = catalog.list_runs(outputs, day.parse_day(address))[0]
        names = sorted({run.record["experiment"] for run in runs}) or names
    published, complaints = [], []
    for name in names:  # one that cannot be packaged must not stop the others
        try:
            chosen = load.choose(address, outputs, name)
            published.append(_publish(chosen, outputs, uri, example))
        except DaypointError as error:
            if len(names) == 1:
                raise
            complaints.append(f"{name}: {error}")
    if not published:
        raise PackageError("\n  ".join([f"{address}: no model of that day can be packaged", *complaints]))
    return Publication(published, complaints)


def promote(
    address: str, outputs: Path, *, experiment: str | None = None, uri: str | None = None
) -> Published:
    """Make a run's checkpoint the model of its day, whatever others measured, and publish it.

    Arguments and errors as in `publish`.
    """
    chosen = load.choose(address, outputs, experiment)
    if chosen.run is None or day.outputs_of(chosen.path, chosen.card["day"]) != outputs:
        raise AddressError(f"{address}: expected a run of a day in {outputs}, found {chosen.path}")
    card = chosen.card
    pins.pin(outputs, card["day"], card["experiment"], uid=card["uid"], checkpoint=chosen.path.name)
    return _publish(chosen, outputs, uri, None)


def _publish(chosen: Chosen, outputs: Path, uri: str | None, example: Path | None) -> Published:
    from daypoint.models import package  # imports torch, which a mistyped address should not wait for

    here = allowlist.of_project(day.project_root(Path.cwd()))
    facts = package.package(chosen, root=day.project_root(outputs), example=example, allow=here)
    run = chosen.run
    assert run is not None
    day_tag, experiment = facts["day"], facts["experiment"]
    days_model = None
    if day.outputs_of(chosen.path, day_tag) == outputs:
        with contextlib.suppress(AddressError):  # the day has no finished run, for example
            days_model = load.choose(day_tag, outputs, experiment)
    if days_model is not None and days_model.path == chosen.path:
        pins.give_alias(outputs, day_tag, experiment, uid=facts["uid"], card_sha256=facts["card_sha256"])
    address = uri or store.of_run(run.directory, run.record)[0]
    if address is None:
        complaint = "not registered: the run was made with tracking.enabled=false; --uri sends it anyway"
        return Published(run, facts, None, None, complaint, None)
    sent = sync.sync([run.directory], uri=uri).runs[0]
    if sent.model is None:
        again = f"daypoint sync {shlex.quote(str(run.directory))}"
        complaint = f"not registered yet: {sent.text}; try again with: {again}"
        return Published(run, facts, address, None, complaint, None)
    holder = None
    if sent.model.alias is None and days_model is not None:
        holder = _alias_holder(outputs, days_model)
    return Published(run, facts, address, sent.model, None, holder)


def _alias_holder(outputs: Path, days_model: Chosen) -> str:
    card, best = days_model.card, days_model.run.address if days_model.run else str(days_model.path)
    with pins.held_aliases(outputs, card["day"]) as aliases:
        held = aliases.get(card["experiment"])
    if held is None:
        return f"nobody; the day's model is {best}, not packaged yet"
    if held["uid"] == card["uid"]:
        return f"{best}, the day's model"
    return f"the run {held['uid']}, although the day's model is {best} now"
