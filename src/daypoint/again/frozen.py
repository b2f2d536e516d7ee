"""A recorded config in the form in which a script runs with it again: nothing in it is left to evaluate.

Every `_target_` is held to the allow-list, text that looks like an interpolation stays text, and sections for Hydra itself are not
taken from a record. Values that a record hides (`***`) come from the project's config of today, as they are written there, so
that no secret passes through here. Only `tracking.outputs`, `tracking.name`, `resume` and `debug` are not as recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf, open_dict

from daypoint.again.script import Script, config_of_today
from daypoint.base.errors import ConfigError
from daypoint.base.redaction import HIDDEN
from daypoint.record import allowlist, config
from daypoint.record.catalog import StoredRun
from daypoint.run import resume

HYDRAS = ("defaults", "hydra")
"""What in a primary config speaks to Hydra."""


def freeze(
    run: StoredRun,
    recorded: Mapping[str, Any],
    script: Script,
    outputs: Path,
    overrides: Sequence[str] = (),
) -> DictConfig:
    """The config to run with: the recorded one, but for where it records.

    What the program had filled in (`daypoint.fill`) it fills in again, except for the device. What is hidden in a record
    comes from the project's config of today.

    Args:
        recorded: a config of the run.
        overrides: what the command line says besides; it is not applied here.

    Raises:
        ConfigError: it names a `_target_` outside of the allow-list, or a hidden value cannot be had.
    """
    frozen = resume.thawed(
        {**run.record, "config": {key: recorded[key] for key in recorded if key not in HYDRAS}}
    )
    with open_dict(frozen):
        if "trainer.device" in run.record["filled"]:
            frozen.trainer.device = config.escaped(recorded["trainer"]["device"])
        for key in ("resume", "debug"):
            if key in frozen:
                frozen[key] = None
        OmegaConf.update(frozen, "tracking.outputs", config.escaped(str(outputs)), force_add=True)
        OmegaConf.update(frozen, "tracking.name", f"reproduces {run.address}", force_add=True)
    sys.path.insert(0, str(script.imports_from))  # the allow-list looks at classes beside the script
    try:
        allowlist.check(config.resolve(frozen.copy()), allowlist.of_project(script.root))
    finally:
        sys.path.remove(str(script.imports_from))
    _reveal(frozen, run, script, {text.partition("=")[0].lstrip("+~") for text in overrides})
    return frozen


def _reveal(frozen: DictConfig, run: StoredRun, script: Script, given: Collection[str]) -> None:
    hidden = [key for key in _hidden(OmegaConf.to_container(frozen, resolve=False)) if key not in given]
    if not hidden:
        return
    today = config_of_today(run.record, script)
    for key in list(hidden):
        raw = _raw(today, key)
        if isinstance(raw, str) and raw != "???" and HIDDEN not in raw:
            OmegaConf.update(frozen, key, raw)
            hidden.remove(key)
    if hidden:
        raise ConfigError(
            f"{', '.join(hidden)}: hidden in the record ({HIDDEN}), and the project's config of today has no value; give it: "
            f"daypoint reproduce {run.address} '{hidden[0]}=${{oc.env:NAME}}'"
        )


def _hidden(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, str) and HIDDEN in value:
        yield key
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from _hidden(item, f"{key}.{name}" if key else str(name))


def _raw(cfg: DictConfig, key: str) -> Any:
    """A value as it is written, an interpolation included, so that no secret is written down; None if it is not there."""
    section, _, last = key.rpartition(".")
    node = OmegaConf.select(cfg, section, throw_on_resolution_failure=False) if section else cfg
    if isinstance(node, ListConfig):
        found = node._get_node(int(last)) if int(last) < len(node) else None
    else:
        found = node._get_node(last) if isinstance(node, DictConfig) else None
    return found._value() if isinstance(found, AnyNode) else None


def to_yaml(frozen: DictConfig, directory: Path) -> bytes:
    """The frozen config as a primary config for Hydra, which then works in that directory and writes nothing of its own."""
    own = {
        "defaults": ["_self_"],
        "hydra": {
            "run": {"dir": config.escaped(str(directory))},
            "output_subdir": None,
            "job": {"chdir": False},
            "job_logging": {"handlers": {"file": {"delay": True}}},
        },
    }
    return config.to_yaml({**own, **OmegaConf.to_container(frozen, resolve=False)})  # type: ignore[dict-item]
