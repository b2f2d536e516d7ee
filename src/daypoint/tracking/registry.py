"""The registry: a run's packaged model in MLflow, a logged model of the run and a registered version.

The registered model has the name of the experiment, a version for each packaged checkpoint, and an alias for
each day. What is there is found by its tags and not made again, so sending twice is harmless, and a store
made anew gets the same from the run directories. Only what is as it was packaged is sent. This module knows
no torch and opens no store: who calls it has the client and the lock on sending the run. One number: 0.12 s
of CPU for a small model, 0.04 s to see that it is there.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daypoint.base import day
from daypoint.base.day import PackageFiles, RunFiles
from daypoint.record import manifest, pins

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

_SEAL = "daypoint.card_sha256"


@dataclass(frozen=True)
class Registered:
    """Where a packaged model is in MLflow.

    Attributes:
        name, version: of the registered model.
        alias: the day, if this version has its alias; None if another one has it, or none.
    """

    name: str
    version: str
    alias: str | None

    @property
    def uri(self) -> str:
        """`models:/digits@20260328`, or `models:/digits/3` for a version that has not the alias of its day."""
        return f"models:/{self.name}@{self.alias}" if self.alias else f"models:/{self.name}/{self.version}"


def model_name(experiment: str) -> str:
    """The registered model of an experiment: its name, without what MLflow refuses or misunderstands.

    A name that had to be changed ends in a hash of the experiment's: two experiments never share a model.
    """
    plain = re.sub(r"[/:@#?%\\\x00-\x1f\x7f]+", "-", experiment).strip(" .")[:200]
    if plain == experiment:
        return plain
    return f"{plain or 'model'}-{hashlib.sha256(experiment.encode()).hexdigest()[:8]}"


def register(
    client: MlflowClient, directory: Path, address: str, run_id: str, experiment_id: str
) -> Registered:
    """Make sure that MLflow has the packaged model of a run, and the alias if it is due to it.

    Args:
        client: of the store.
        directory: the run directory, absolute.
        address: how the run is called.
        run_id, experiment_id: what MLflow calls the run, which it has.

    Raises:
        PackageError: the package was changed after it was made.
        MlflowException: it did not arrive; trying again is harmless.
    """
    from mlflow.exceptions import MlflowException

    package = RunFiles(directory, "").package
    facts = manifest.trusted(package)
    name = model_name(facts["experiment"])
    model = _logged_model(client, package, facts, address, run_id, experiment_id)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    found = _version(client, name, run_id, facts)
    if found is None:
        found = client.create_model_version(
            name,
            # Not models:/ID, which MLflow looks up in whatever store the environment names.
            source=model.artifact_location,
            run_id=run_id,
            tags=_tags(facts, address),
            description=_description(facts, address, name),
            model_id=model.model_id,
        )
    _link(client, model.model_id, name, str(found.version))
    registered = Registered(name, str(found.version), None)
    outputs = day.outputs_of(directory, facts["day"])
    if outputs is None:
        return registered
    with pins.held_aliases(outputs, facts["day"]) as aliases:
        due = aliases.get(facts["experiment"])
        if due != {"uid": facts["uid"], "card_sha256": facts["card_sha256"]}:
            return registered
        client.set_registered_model_alias(name, facts["day"], registered.version)
    return replace(registered, alias=facts["day"])


def _version(client: MlflowClient, name: str, run_id: str, facts: dict[str, Any]) -> ModelVersion | None:
    for version in client.search_model_versions(f"run_id = '{run_id}'"):
        if version.name == name and version.tags.get(_SEAL) == facts["card_sha256"]:
            return version
    return None


def _logged_model(
    client: MlflowClient,
    package: Path,
    facts: dict[str, Any],
    address: str,
    run_id: str,
    experiment_id: str,
) -> LoggedModel:
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    where = f"source_run_id = '{run_id}'"
    model = None
    for candidate in client.search_logged_models([experiment_id], where):
        if candidate.tags.get(_SEAL) == facts["card_sha256"]:
            model = candidate
    if model is None:
        model = client.create_logged_model(
            experiment_id,
            name=re.sub(r"[/:.%\"']+", "-", model_name(facts["experiment"])),
            source_run_id=run_id,
            tags=_tags(facts, address),
        )
    if model.status != LoggedModelStatus.READY:
        with tempfile.TemporaryDirectory(prefix="daypoint-") as scratch:
            copy = _copy_for(model.model_id, run_id, package, facts, Path(scratch, "model"))
            client.log_model_artifacts(model.model_id, str(copy))
        model = client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    outputs = client.get_run(run_id).outputs
    if model.model_id not in {output.model_id for output in (outputs.model_outputs if outputs else ())}:
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=facts["step"])])
    return model


def _copy_for(model_id: str, run_id: str, package: Path, facts: dict[str, Any], target: Path) -> Path:
    """A copy of the package whose MLmodel says, as MLflow's own do, which model of which run it is."""
    from mlflow.models import Model

    shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__"))
    paths = PackageFiles(target)
    model = Model.load(str(paths.model))
    model.run_id, model.model_id = run_id, model_id
    model.save(str(paths.model))
    manifest.write(target, {key: value for key, value in facts.items() if key not in ("format", "files")})
    return target


def _link(client: MlflowClient, model_id: str, name: str, version: str) -> None:
    """Tell the logged model of its version, as MLflow's own registering does; its page shows it."""
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
