"""Decide with which config a resumed run trains, and which changes to it are allowed.

`python train.py resume=20260328 trainer.epochs=40`: the config is the recorded one, as it was resolved then
(`now()`, the environment and today's YAML files are not asked again), except for what the command line changes.
Changes that cannot make sense in the middle of a training are refused before anything is written. This module
restores no weights and writes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from daypoint.base.errors import ConfigError
from daypoint.base.redaction import HIDDEN
from daypoint.hydra import app as hydra_app
from daypoint.hydra import overrides
from daypoint.hydra import sweep as hydra_sweep
from daypoint.record import catalog, config, identity

_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")

FIXED = (
    "model",
    "data",
    "loss",
    "optimizer._target_",
    "scheduler._target_",
    "trainer.seed",
    "trainer.accumulate",
)
"""Settings that make it another training when they change."""
FREE = ("data.num_workers", "data.path", "data.source")
"""Settings below fixed ones that may change all the same, since the training does not depend on them."""


def resumed(cfg: DictConfig) -> DictConfig:
    """The config to train with: `cfg` itself, or, when it has a `resume` address, that run's recorded config
    with the changes of the command line. Call it first in a Hydra `main`; outside Hydra there is no command line, so
    the recorded config is returned as it is.

    Raises:
        AddressError: the address names no run, or more than one.
        ConfigError: the command line changes what cannot change in the middle of a training.
    """
    hydra_sweep.check_job()
    address = cfg.get("resume")
    if address is None:
        return cfg
    with hydra_app.one_message():
        return _resumed(cfg, str(address))


def _resumed(cfg: DictConfig, address: str) -> DictConfig:
    settings = config.section({"tracking": config.resolve(cfg.copy()).get("tracking")}, "tracking")
    run = catalog.find_one(address, config.outputs_directory(settings))
    frozen = thawed(run.record)
    with read_write(frozen), open_dict(frozen):
        _put_secrets_back(frozen, frozen, cfg)
        for key, value in _given(run.record):
            OmegaConf.update(frozen, key, value, force_add=True)
        frozen.resume = str(run.directory)
    OmegaConf.set_struct(frozen, True)
    config.check(frozen)
    return frozen


def thawed(record: Mapping[str, Any]) -> DictConfig:
    """A recorded config that can be changed: values that referred to others refer to them again,
    and what the program had filled in is left for it to fill in. All else is the recorded data.

    Raises:
        ConfigError: a recorded reference is something else than the name of a key.
    """
    frozen = OmegaConf.create(config.escaped(record["config"]))
    for key, before in record["filled"].items():
        OmegaConf.update(frozen, key, None if before is None else "auto")
    for key, target in record["references"].items():
        reference = f"${{{target}}}"
        if not _REFERENCE.fullmatch(
            reference
        ):  # a record is data from disk: it may name a key, and call nothing
            raise ConfigError(
                f"{key}: expected a reference to another key of the config, found {reference!r}"
            )
        OmegaConf.update(frozen, key, reference)
    return frozen


def references(cfg: Any) -> dict[str, str]:
    """Which values of a config that is not resolved yet are references to others, by key: `{"data.seed":
    "trainer.seed"}`.
    """
    if not isinstance(cfg, DictConfig):
        return {}
    values = _leaves(OmegaConf.to_container(cfg, resolve=False), "")
    matches = {key: _REFERENCE.fullmatch(value) for key, value in values.items() if isinstance(value, str)}
    return {key: match[1] for key, match in matches.items() if match}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs between two resolved configs, by dotted key: (before, after); a key that is missing counts
    as null.

    Numbers are compared as numbers: 1e-3 is 0.001. Keys that do not matter to a training (`identity.IGNORED`) are left out.
    """
    old, new = _leaves(before, ""), _leaves(after, "")
    return {
        key: (old.get(key), new.get(key))
        for key in (*old, *(key for key in new if key not in old))
        if old.get(key) != new.get(key) and not _below(key, identity.IGNORED)
    }


def refuse_fixed(changed: Mapping[str, tuple[Any, Any]], address: str) -> None:
    """Refuse changes that would make it another training.

    Raises:
        ConfigError: names every key that may not, with both values.
    """
    fixed = {key: pair for key, pair in changed.items() if _below(key, FIXED) and not _below(key, FREE)}
    if fixed:
        lines = "; ".join(f"{key} was {before!r}, now {after!r}" for key, (before, after) in fixed.items())
        raise ConfigError(
            f"resume={address}: {lines}; this would be another training: leave it as it was, or start a new run"
        )


def _leaves(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value:
        return {key: list(value) if isinstance(value, tuple) else value}
    inner = [_leaves(item, f"{key}.{name}" if key else str(name)) for name, item in value.items()]
    return {name: leaf for leaves in inner for name, leaf in leaves.items()}


def _below(key: str, prefixes: tuple[str, ...]) -> bool:
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)


def _put_secrets_back(node: DictConfig, root: DictConfig, cfg: DictConfig, prefix: str = "") -> None:
    """Replace the `***` that a recorded config has for its secrets by the values of today's config."""
    for name in list(node):
        key = f"{prefix}{name}"
        value = node._get_node(name)
        if isinstance(value, DictConfig):
            _put_secrets_back(value, root, cfg, f"{key}.")
        elif isinstance(raw := value._value(), str) and HIDDEN in raw:
            OmegaConf.update(root, key, OmegaConf.select(cfg, key, default=raw))


def _given(record: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The overrides of the command line as (key, value), without `resume` itself.

    Raises:
        ConfigError: it names another member of a config group than the run had.
    """
    job = hydra_app.current_job()
    given = []
    for key, value in overrides.parsed(job.overrides if job else []):
        if key == "resume":
            continue
        if job is None or key not in job.choices:
            given.append((key, value))
        elif (before := record["choices"].get(key)) != value:
            raise ConfigError(
                f"resume: {key} was {before!r}, now {value!r}; a group cannot change when a run goes on: "
                "name single values, or start a new run"
            )
    return given
