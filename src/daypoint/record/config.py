"""The settings of a run: the typed sections `tracking`, `trainer` and `sweep`, and a config as plain data.

A config is resolved once (`resolve`); after that it is plain data that says the same to everyone. `check` finds
every mistake that can be known before training, each as one message with the full key. This module knows nothing of Hydra, opens
no run and reads no file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException, UnsupportedValueType

from daypoint.base import day
from daypoint.base.errors import ConfigError
from daypoint.record import targets


def _expect(is_right: bool, key: str, expected: str, found: Any) -> None:
    if not is_right:
        raise ConfigError(f"{key}: expected {expected}, found {found!r}")


def _one_of(key: str, found: str | None, *choices: str | None) -> None:
    names = [choice or "null" for choice in choices]
    _expect(found in choices, key, f"{', '.join(names[:-1])} or {names[-1]}", found)


@dataclass(kw_only=True)
class Tracking:
    """Where a run is recorded. The journal in the run directory is always written; MLflow gets a copy."""

    enabled: bool = True
    """Copy to MLflow. When false only the run directory is written."""
    uri: str | None = None
    """MLflow tracking URI; null: $MLFLOW_TRACKING_URI, else the SQLite file mlruns/mlflow.db of the project."""
    experiment: str | None = None
    """MLflow experiment; null: the name of the data, else of the script."""
    name: str | None = None
    """Name of the run in MLflow; null: its day and time, the model and the optimizer."""
    outputs: str = "outputs"
    """Directory of the days; a relative path is relative to the project, not to the working directory."""
    timezone: str = "local"
    """Time zone of the days: local, UTC, or a name such as Europe/Berlin."""
    wait_seconds: float = 30.0
    """How long the end of a run waits for MLflow to have everything. What is left then: `daypoint sync`."""
    on_nonfinite: str = "warn"
    """When a logged value is NaN or infinite: record | warn | stop. It is recorded in each case."""
    package: bool = False
    """At the end of a finished run, make its best checkpoint servable, as `daypoint package` does, in another process."""
    tags: dict[str, str] = field(default_factory=dict)
    """More tags for the MLflow run. `mlflow.note.content` is its description; other names of MLflow's own are refused."""

    def __post_init__(self) -> None:
        _expect(
            self.uri != "",
            "tracking.uri",
            "the address of an MLflow server, as tracking.uri=http://host:5000",
            self.uri,
        )
        _one_of("tracking.on_nonfinite", self.on_nonfinite, "record", "warn", "stop")
        _expect(self.wait_seconds >= 0, "tracking.wait_seconds", "seconds >= 0", self.wait_seconds)
        length = 1 if self.experiment is None else len(self.experiment)
        _expect(0 < length <= 500, "tracking.experiment", "1 to 500 characters", length)
        length = len(self.name or "")
        _expect(length <= 250, "tracking.name", "at most 250 characters", length)
        for name in self.tags:
            ours = name in ("date", "host", "device") or name.startswith(("daypoint.", "git."))
            if not name or ours or (name.startswith("mlflow.") and name != "mlflow.note.content"):
                whose = "daypoint's" if ours else "MLflow's" if name else "nobody's"
                raise ConfigError(
                    f"tracking.tags: expected names of your own, found {name!r}, {whose}; rename it"
                )
        day.zone(self.timezone)


@dataclass(kw_only=True)
class Trainer:
    """How `train.py` trains."""

    epochs: int = 20
    """Passes over the training data."""
    device: str = "auto"
    """auto | cpu | cuda | cuda:N | mps. auto takes cuda, then mps, then cpu."""
    precision: str = "fp32"
    """fp32 | bf16 | fp16. The 16-bit kinds run under autocast; fp16 also scales the loss."""
    clip_norm: float | None = None
    """Largest norm of the gradient, over all parameters; null: no clipping."""
    accumulate: int = 1
    """Batches whose gradients are added before each optimizer step."""
    updates: int | None = None
    """Optimizer steps of the whole run, for schedulers; null: train.py fills in what follows from epochs and data."""
    compile: bool = False
    """Whether to run the model through torch.compile."""
    seed: int = 0
    """Seed of the weights, the order of the data and dropout."""
    monitor: str | None = None
    """Metric that says which checkpoint is best; null: val/accuracy for classification, val/loss for regression."""
    mode: str | None = None
    """max | min: whether more of the monitored metric is better; null: min if its name has "loss" or "error", else max."""
    save_every: int = 1
    """Epochs from one checkpoint to the next; the last epoch always gets one."""
    keep: int | None = 3
    """Checkpoints kept: the latest so many, besides the best; null: all."""

    def __post_init__(self) -> None:
        _expect(-(2**63) <= self.seed < 2**64, "trainer.seed", "a whole number of at most 64 bits", self.seed)
        for key, least in (("epochs", 0), ("accumulate", 1), ("save_every", 1), ("keep", 1)):
            value = getattr(self, key)
            _expect(value is None or value >= least, f"trainer.{key}", f"a whole number >= {least}", value)
        is_known = self.device in ("auto", "cpu", "mps") or self.device.startswith("cuda")
        _expect(is_known, "trainer.device", "auto, cpu, cuda, cuda:N or mps", self.device)
        _one_of("trainer.precision", self.precision, "fp32", "bf16", "fp16")
        _one_of("trainer.mode", self.mode, "max", "min", None)
        is_positive = self.clip_norm is None or self.clip_norm > 0
        _expect(is_positive, "trainer.clip_norm", "a number > 0 or null", self.clip_norm)


@dataclass(kw_only=True)
class Sweep:
    """How a sweep (`-m`) treats its jobs."""

    resume: str | None = None
    """A sweep to go on with, `last` or an address: only its jobs that are missing or failed are run."""
    skip_done: bool = False
    """Skip a job whose config has a finished run already, on any day."""
    on_failure: str = "go_on"
    """When a job fails: go_on | stop (jobs that have started go on)."""

    def __post_init__(self) -> None:
        _one_of("sweep.on_failure", self.on_failure, "go_on", "stop")


SCHEMAS: dict[str, type] = {"tracking": Tracking, "trainer": Trainer, "sweep": Sweep}


# ---------------------------------------------------------------- resolving and checking


def outputs_directory(tracking: Tracking, root: Path | None = None) -> Path:
    """The absolute path of the directory of the days."""
    return ((root or day.project_root()) / Path(tracking.outputs).expanduser()).absolute()


def section(config: Mapping[str, Any], name: str) -> Any:
    """The typed settings of one section of a resolved config; the defaults where it has none.

    Raises:
        ConfigError: a key that does not exist (names the nearest one that does), or a value of the wrong
            type.
    """
    schema = SCHEMAS[name]
    given = config.get(name) or {}
    if unknown := [key for key in given if key not in schema.__dataclass_fields__]:
        near = difflib.get_close_matches(unknown[0], schema.__dataclass_fields__, n=1)
        hint = (
            f"did you mean {name}.{near[0]}?"
            if near
            else f"it knows {', '.join(schema.__dataclass_fields__)}"
        )
        raise ConfigError(f"{name}.{unknown[0]}: no such setting; {hint}")
    try:
        return OmegaConf.to_object(
            OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.create(dict(given)))
        )
    except OmegaConfBaseException as error:
        key = f"{name}.{error.full_key}" if error.full_key else name
        raise ConfigError(f"{key}: {str(error).splitlines()[0]}") from None


def resolve(config: DictConfig | Mapping[str, Any] | None) -> dict[str, Any]:
    """A config as plain data: every interpolation evaluated, once; nothing missing.

    When `config` is a DictConfig it is resolved in place, so that what the program reads afterwards is what
    was recorded.

    Raises:
        ConfigError: a value is missing (`???`; all of them are named), an interpolation leads nowhere, a key
            is no string, or a value is not plain data.
    """
    if config is None:
        return {}
    try:
        node = config if isinstance(config, DictConfig) else OmegaConf.create(dict(config))
        if missing := sorted(OmegaConf.missing_keys(node)):
            keys = ", ".join(missing)
            raise ConfigError(f"{keys}: expected a value, found ??? (missing); give it as {missing[0]}=…")
        with read_write(node), open_dict(node):
            OmegaConf.resolve(node)
        # Resolved already; what looks like an interpolation now is text that was escaped.
        plain = OmegaConf.to_container(node, resolve=False)
    except UnsupportedValueType as error:
        raise _not_plain(error.full_key or "config", error.value) from None
    except OmegaConfBaseException as error:
        key = error.full_key or "config"
        raise ConfigError(f"{key}: {str(error).splitlines()[0]}") from None
    _check_plain(plain, "")
    return plain  # type: ignore[return-value]


def _check_plain(value: Any, key: str) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            inner = f"{key}.{name}" if key else str(name)
            if type(name) is not str:
                raise ConfigError(
                    f"{inner}: expected a key that is text, found {name!r} ({type(name).__name__}); write it as '{name}'"
                )
            _check_plain(name, ascii(inner))
            _check_plain(item, inner)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check_plain(item, f"{key}.{i}")
    elif type(value) not in (str, bool, int, float, type(None)):
        raise _not_plain(key, value)
    elif type(value) is str and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # no file of a run could hold it
            raise ConfigError(
                f"{key}: expected Unicode text, found {value!r}, bytes that are no UTF-8; correct its encoding"
            ) from None


def _not_plain(key: str, value: Any) -> ConfigError:
    if not hasattr(value, "item"):
        remedy = "write it as text"
    elif getattr(value, "shape", ()) == ():
        remedy = f"give its number, {key.rpartition('.')[2]}.item()"
    else:
        remedy = "give its numbers as a list, .tolist()"
    return ConfigError(
        f"{key}: expected text, a number, true, false, null, a list or a map, found {type(value).__name__}; {remedy}"
    )


def check(config: DictConfig) -> dict[str, Any]:
    """Everything about a config that can be known before training. Returns it resolved.

    Raises:
        ConfigError: see `resolve`, `section` and `targets.check_call`.
    """
    plain = resolve(config.copy())
    for name in SCHEMAS:
        if name in plain:
            section(plain, name)
    for key, node in targets.find(plain):
        targets.check_call(key, node)
    return plain


def fill(config: DictConfig, key: str, **found: Any) -> None:
    """Put what was found out at the start (a table's width, its task) where the config says null.

    So the recorded config is complete: a model can be rebuilt from it without the data. A value that the
    config already has must agree with what was found.

    Raises:
        ConfigError: it does not.
    """
    node = config[key]
    with read_write(config), open_dict(config):
        for name, value in found.items():
            value = list(value) if isinstance(value, tuple) else value
            given = node.get(name)
            if given is None or given == "auto":
                node[name] = value
                if (filled := node._get_node(name)) is not None:
                    filled._set_flag(_WAS_NULL if given is None else _WAS_AUTO, True)
            elif (list(given) if isinstance(given, ListConfig) else given) != value:
                raise ConfigError(f"{key}.{name}: the config says {given}, the data says {value}")


_INTERPOLATION = re.compile(r"(\\*)\$\{")
_WAS_NULL, _WAS_AUTO = "daypoint_was_null", "daypoint_was_auto"


def filled(config: Any) -> dict[str, str | None]:
    """What `fill` has replaced: null or "auto", by dotted key."""
    found: dict[str, str | None] = {}

    def visit(node: DictConfig, prefix: str) -> None:
        for name in node:
            inner = node._get_node(name)
            if inner is not None and (inner._get_node_flag(_WAS_NULL) or inner._get_node_flag(_WAS_AUTO)):
                found[f"{prefix}{name}"] = None if inner._get_node_flag(_WAS_NULL) else "auto"
            elif isinstance(inner, DictConfig) and not inner._is_none() and not inner._is_interpolation():
                visit(inner, f"{prefix}{name}.")

    if isinstance(config, DictConfig):
        visit(config, "")
    return found


def escaped(value: Any) -> Any:
    """Plain data as OmegaConf has to get it, so that text that looks like an interpolation stays text."""
    if isinstance(value, str):
        # A backslash before it would escape the escape, and `\\${oc.env:TOKEN}` be evaluated after all.
        return _INTERPOLATION.sub(lambda found: f"{found[1] * 2}\\${{", value)
    if isinstance(value, Mapping):
        return {key: escaped(item) for key, item in value.items()}
    return [escaped(item) for item in value] if isinstance(value, list) else value


def to_yaml(raw: Mapping[str, Any]) -> bytes:
    """A config as YAML that OmegaConf reads back as the same data.

    Args:
        raw: from `escaped`, or the content of an OmegaConf config that is not resolved.
    """
    return yaml.dump(raw, Dumper=_Dumper, sort_keys=False, allow_unicode=True).encode()


class _Dumper(yaml.SafeDumper):
    """Quotes every text that a YAML reader might take for a number or a date, or whose characters it might change."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    is_plain = text.isprintable() and not re.match(r"[-+.\d]", text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


_Dumper.add_representer(str, _quoted)
