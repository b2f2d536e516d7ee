"""Resuming: which run goes on, with which config, and what may be different from before.

`python train.py resume=20260328 trainer.epochs=40`: the config is the recorded one, frozen as it was
(`now()`, the environment and today's YAML files are not asked again), except for what the command line names.
Changes that cannot make sense in the middle of a training are refused before anything is written. This module
restores no weights and writes nothing.
One number: a changed value is named with its key, before and after, in one line.
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
"""What makes a training another one when it changes."""
FREE = ("data.num_workers", "data.path", "data.source")
"""What changes nothing of the training although it stands below something fixed."""


def resumed(cfg: DictConfig) -> DictConfig:
    """The config to train with: `cfg` itself, or, when it has a `resume` address, that run's recorded config
    with what the command line changes in it. Call it first in a Hydra `main`; outside Hydra the address alone
    decides and nothing is changed.

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
    """A recorded config as one that can be changed: what was a reference to another value follows it again,
    and what the program had filled in is left for it to fill in. All else is the recorded data.

    Raises:
        ConfigError: a reference is none.
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
    found: dict[str, str] = {}

    def visit(value: Any, key: str) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                visit(item, f"{key}.{name}" if key else str(name))
        elif isinstance(value, str) and (match := _REFERENCE.fullmatch(value)):
            found[key] = match.group(1)

    visit(OmegaConf.to_container(cfg, resolve=False), "")
    return found


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs between two resolved configs, by dotted key: (before, after); a key that is missing counts
    as null.

    Numbers are compared as numbers: 1e-3 is 0.001. Keys that do not matter to a training are left out
        (`identity.IGNORED`).
    """
    old, new = _leaves(before, ""), _leaves(after, "")
    return {
        key: (old.get(key), new.get(key))
        for key in (*old, *(key for key in new if key not in old))
        if old.get(key) != new.get(key) and not _below(key, identity.IGNORED)
    }


def refuse_fixed(changed: Mapping[str, tuple[Any, Any]], address: str) -> None:
    """Let through only what may change when a run goes on.

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
    if isinstance(value, Mapping) and value:
        return {
            k: v
            for name, item in value.items()
            for k, v in _leaves(item, f"{key}.{name}" if key else name).items()
        }
    return {key: list(value) if isinstance(value, tuple) else value}


def _below(key: str, prefixes: tuple[str, ...]) -> bool:
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)


def _put_secrets_back(node: DictConfig, root: DictConfig, cfg: DictConfig, prefix: str = "") -> None:
    """A recorded config has *** for its secrets; they come from today's config."""
    for name in list(node):
        key = f"{prefix}{name}"
        value = node._get_node(name)
        if isinstance(value, DictConfig):
            _put_secrets_back(value, root, cfg, f"{key}.")
        elif isinstance(raw := value._value(), str) and HIDDEN in raw:
            OmegaConf.update(root, key, OmegaConf.select(cfg, key, default=raw))


def _given(record: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What the command line says, as (key, value), without `resume` itself.

    Raises:
        ConfigError: it names another member of a config group than the run had.
    """
    job = hydra_app.current_job()
    given = []
    for key, value in overrides.parsed(job.overrides if job else []):
        if key == "resume":
            continue
        if job is not None and key in job.choices:
            before = record["choices"].get(key)
            if before != value:
                raise ConfigError(
                    f"resume: {key} was {before!r}, now {value!r}; a group cannot change when a run goes on: "
                    "name single values, or start a new run"
                )
            continue
        given.append((key, value))
    return given
