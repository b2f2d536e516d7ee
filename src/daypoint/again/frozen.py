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

from omegaconf import DictConfig, OmegaConf, open_dict

from daypoint.again.script import Script, config_of_today
from daypoint.base.errors import ConfigError
from daypoint.base.redaction import HIDDEN
from daypoint.record import allowlist, config
from daypoint.record.catalog import StoredRun
from daypoint.run import resume


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
    # The sections for Hydra itself could name any callable.
    trained = {key: value for key, value in recorded.items() if key not in ("defaults", "hydra")}
    frozen = resume.thawed({**run.record, "config": trained})
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
    hidden = [key for key, text in _texts(_raw(frozen)) if HIDDEN in text and key not in given]
    if not hidden:
        return
    # As they are written, interpolations included, so that no secret is written down.
    today = dict(_texts(_raw(config_of_today(run.record, script))))
    missing = []
    for key in hidden:
        text = today.get(key, "???")
        if text == "???" or HIDDEN in text:
            missing.append(key)
        else:
            OmegaConf.update(frozen, key, text)
    if missing:
        raise ConfigError(
            f"{', '.join(missing)}: hidden in the record ({HIDDEN}), and the project's config of today has no value; give it: "
            f"daypoint reproduce {run.address} '{missing[0]}=${{oc.env:NAME}}'"
        )


def _raw(cfg: DictConfig) -> Any:
    return OmegaConf.to_container(cfg, resolve=False)


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a config, by its dotted path."""
    if isinstance(value, str):
        yield key, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from _texts(item, f"{key}.{name}" if key else str(name))


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
    return config.to_yaml({**own, **_raw(frozen)})
