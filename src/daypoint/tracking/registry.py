"""Sends a packaged model to MLflow: as a logged model of its run, and as a version of a registered model.

The registered model has the name of the experiment, a version for each packaged checkpoint, and an alias for each day. What
exists is found by its tags and not made again, so sending twice is harmless, and a new store gets the same models from the
run directories. A package that was changed after it was made is not sent. This module imports no torch and opens no store:
the caller has the client and the lock on sending the run.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daypoint.base import day
from daypoint.base.day import PackageFiles, RunFiles
from daypoint.record import manifest, pins

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

    from daypoint.tracking.shipment import Shipment

_SEAL = "daypoint.card_sha256"


@dataclass(frozen=True)
class Registered:
    """Where a packaged model is in MLflow.

    Attributes:
        name, version: of the registered model.
        alias: the day, if this version has the alias of the day.
    """

    name: str
    version: str
    alias: str | None

    @property
    def uri(self) -> str:
        """`models:/digits@20260328`, or `models:/digits/3` for a version without the alias of its day."""
        return f"models:/{self.name}@{self.alias}" if self.alias else f"models:/{self.name}/{self.version}"


def model_name(experiment: str) -> str:
    """The name of the registered model of an experiment: the experiment's, without characters that MLflow refuses.

    A name that had to be changed ends in a hash of the experiment's, so that two experiments never share a model.
    """
    plain = re.sub(r"[/:@#?%\\\x00-\x1f\x7f]+", "-", experiment).strip(" .")[:200]
    if plain == experiment:
        return plain
    return f"{plain or 'model'}-{hashlib.sha256(experiment.encode()).hexdigest()[:8]}"


def register(client: MlflowClient, run: Shipment) -> Registered:
    """Make sure that MLflow has the packaged model of a run, with the alias of its day if this model should have it.

    Args:
        client: of the store.
        run: a run that MLflow has.

    Raises:
        PackageError: the package was changed after it was made.
        MlflowException: it did not arrive; trying again is harmless.
    """
    from mlflow.exceptions import MlflowException

    package = RunFiles(run.directory, "").package
    facts = manifest.trusted(package)
    name = model_name(facts["experiment"])
    model = _logged_model(client, package, facts, run)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = client.search_model_versions(f"run_id = '{run.run_id}'")
    found = _of_card([each for each in versions if each.name == name], facts) or client.create_model_version(
        name,
        # Not models:/ID, which MLflow looks up in whatever store the environment names.
        source=model.artifact_location,
        run_id=run.run_id,
        tags=_tags(facts, run.address),
        description=_description(facts, run.address, name),
        model_id=model.model_id,
    )
    version, alias = str(found.version), None
    _link(client, model.model_id, name, version)
    if (outputs := day.outputs_of(run.directory, facts["day"])) is not None:
        holder = {"uid": facts["uid"], "card_sha256": facts["card_sha256"]}
        with pins.held_aliases(outputs, facts["day"]) as aliases:
            if aliases.get(facts["experiment"]) == holder:
                client.set_registered_model_alias(name, facts["day"], version)
                alias = facts["day"]
    return Registered(name, version, alias)


def _logged_model(client: MlflowClient, package: Path, facts: dict[str, Any], run: Shipment) -> LoggedModel:
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    found = client.search_logged_models([run.experiment_id], f"source_run_id = '{run.run_id}'")
    model = _of_card(found, facts) or client.create_logged_model(
        run.experiment_id,
        name=re.sub(r"[/:.%\"']+", "-", model_name(facts["experiment"])),
        source_run_id=run.run_id,
        tags=_tags(facts, run.address),
    )
    if model.status != LoggedModelStatus.READY:
        with tempfile.TemporaryDirectory(prefix="daypoint-") as scratch:
            copy = _copy_for(model.model_id, run.run_id, package, facts, Path(scratch, "model"))
            client.log_model_artifacts(model.model_id, str(copy))
        model = client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    outputs = client.get_run(run.run_id).outputs
    if model.model_id not in {output.model_id for output in (outputs.model_outputs if outputs else ())}:
        client.log_outputs(run.run_id, [LoggedModelOutput(model.model_id, step=facts["step"])])
    return model


def _of_card(found: Iterable[Any], facts: dict[str, Any]) -> Any:
    """The one that was made of the same checkpoint, or None."""
    return next((each for each in found if each.tags.get(_SEAL) == facts["card_sha256"]), None)


def _copy_for(model_id: str, run_id: str, package: Path, facts: dict[str, Any], target: Path) -> Path:
    """A copy of the package with the ids of model and run in its MLmodel, where MLflow itself puts them."""
    from mlflow.models import Model

    shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__"))
    paths = PackageFiles(target)
    model = Model.load(str(paths.model))
    model.run_id, model.model_id = run_id, model_id
    model.save(str(paths.model))
    manifest.write(target, {key: value for key, value in facts.items() if key not in ("format", "files")})
    return target


def _link(client: MlflowClient, model_id: str, name: str, version: str) -> None:
    """Tell the logged model of its version, as `mlflow.register_model` does; its page shows it."""
    from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

    known = json.loads(client.get_logged_model(model_id).tags.get(MLFLOW_MODEL_VERSIONS, "[]"))
    if not any(str(one["version"]) == version and one["name"] == name for one in known):
        known.append({"name": name, "version": version})
        client.set_logged_model_tags(model_id, {MLFLOW_MODEL_VERSIONS: json.dumps(known)})


def _tags(facts: dict[str, Any], address: str) -> dict[str, str]:
    tags = {
        "date": facts["day"],
        "daypoint.run": address,
        "daypoint.uid": facts["uid"],
        "daypoint.step": str(facts["step"]),
        _SEAL: facts["card_sha256"],
        "daypoint.metric": facts["metric"],
        "daypoint.value": None if facts["value"] is None else repr(facts["value"]),
        "daypoint.format": facts["kind"],
        "daypoint.reason": facts["reason"],
    }
    return {key: text for key, text in tags.items() if text is not None}


def _description(facts: dict[str, Any], address: str, name: str) -> str:
    measured = "" if facts["value"] is None else f", {facts['metric']} {facts['value']:.6g}"
    return (
        f"Step {facts['step']} of daypoint run {address}{measured}. If it is the day's model, serve it with "
        f"`mlflow models serve -m models:/{name}@{facts['day']} --env-manager local`."
    )
