"""What a run can be told: typed settings, and the checks that turn a bad config into one clear message.

`register_configs()` puts into Hydra's ConfigStore the group member `daypoint` (the dated run directory, the pre-flight check)
and the schemas of `tracking` and `trainer`, so that a misspelt key or a wrong type fails while Hydra composes. What Hydra cannot see is
checked by `check`: missing values, callables that do not exist, arguments that a callable does not take or whose type is wrong.
In a single run this happens before any directory is made.

This module never opens a run and never reads a config that comes from disk. One number: resolving happens once; after it, a
config is plain data.
"""

from __future__ import annotations

import atexit
import difflib
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from daypoint import day, ranks
from daypoint.errors import ConfigError

SWEEP_VARIABLE = "DAYPOINT_SWEEP_DIR"
"""Tells the job processes of a sweep which directory the sweep's own process has claimed."""


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
    tags: dict[str, str] | None = None
    """More tags for the MLflow run."""

    def __post_init__(self) -> None:
        if self.on_nonfinite not in ("record", "warn", "stop"):
            raise ConfigError(
                f"tracking.on_nonfinite: expected record, warn or stop, found {self.on_nonfinite!r}"
            )
        if self.wait_seconds < 0:
            raise ConfigError(f"tracking.wait_seconds: expected seconds >= 0, found {self.wait_seconds}")
        if self.experiment is not None and not 0 < len(self.experiment) <= 500:
            raise ConfigError(
                f"tracking.experiment: expected 1 to 500 characters, found {len(self.experiment)}; "
                "use null for the default name"
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
    """max | min: whether more of the monitored metric is better; null: min for a metric with "loss" or "error" in its
    name, else max."""
    save_every: int = 1
    """Epochs from one checkpoint to the next; the last epoch always gets one."""
    keep: int | None = 3
    """Checkpoints kept: the latest so many, besides the best; null: all."""

    def __post_init__(self) -> None:
        for key, least in (("epochs", 0), ("accumulate", 1), ("save_every", 1), ("keep", 1)):
            value = getattr(self, key)
            if value is not None and value < least:
                raise ConfigError(f"trainer.{key}: expected a whole number >= {least}, found {value}")
        if self.device not in ("auto", "cpu", "mps") and not self.device.startswith("cuda"):
            raise ConfigError(f"trainer.device: expected auto, cpu, cuda, cuda:N or mps, found {self.device!r}")
        if self.precision not in ("fp32", "bf16", "fp16"):
            raise ConfigError(f"trainer.precision: expected fp32, bf16 or fp16, found {self.precision!r}")
        if self.mode not in (None, "max", "min"):
            raise ConfigError(f"trainer.mode: expected max, min or null, found {self.mode!r}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"trainer.clip_norm: expected a number > 0 or null, found {self.clip_norm}")


SCHEMAS: dict[str, type] = {"tracking": Tracking, "trainer": Trainer}


# ---------------------------------------------------------------- Hydra


def register_configs() -> None:
    """Make daypoint's config known to Hydra; call it once, before `@hydra.main` runs. Idempotent.

    Afterwards `defaults: [daypoint, ...]` in a primary config gives it the dated run directory, the pre-flight check and
    the typed `tracking` section; `trainer/schema` is there for a `conf/trainer/*.yaml` to build on.
    """
    from hydra.core.config_store import ConfigStore

    OmegaConf.register_new_resolver("daypoint.run_dir", _run_dir, replace=True)
    OmegaConf.register_new_resolver("daypoint.sweep_dir", _sweep_dir, replace=True)
    store = ConfigStore.instance()
    for group, schema in SCHEMAS.items():
        store.store(group=group, name="schema", node=schema, provider="daypoint")
    store.store(
        name="daypoint",
        package="_global_",
        provider="daypoint",
        node={
            "defaults": [{"tracking": "schema"}, "_self_"],
            "hydra": {
                "run": {"dir": "${daypoint.run_dir:}"},
                "sweep": {"dir": "${daypoint.sweep_dir:}", "subdir": "${hydra:job.num}"},
                # run.json and config_DAY.yaml hold what .hydra/ would, with the secrets left out.
                "output_subdir": None,
                "job": {"chdir": False},
                # The log file appears with the first line that goes into it.
                "job_logging": {"handlers": {"file": {"delay": True}}},
                "callbacks": {"daypoint": {"_target_": "daypoint.config.Preflight"}},
            },
        },
    )


_claimed: dict[str, Path] = {}
_claimed_at: dict[Path, datetime] = {}


def claimed_at(directory: Path) -> datetime | None:
    """The instant for which this process claimed a run directory; None if it did not."""
    return _claimed_at.get(directory)


def _run_dir(*, _root_: DictConfig) -> str:
    """The directory of this process's run: claimed at the first call, the same ever after."""
    return str(_claim_once("run", _root_))


def _sweep_dir(*, _root_: DictConfig) -> str:
    """The directory of this sweep: claimed by the process that was started with `-m`, told to its jobs' processes."""
    is_job = not OmegaConf.is_missing(_root_.hydra.job, "num")
    if "sweep" not in _claimed and is_job and (told := os.environ.get(SWEEP_VARIABLE)):
        _claimed["sweep"] = Path(told)
    directory = _claim_once("sweep", _root_)
    os.environ[SWEEP_VARIABLE] = str(directory)
    return str(directory)


def _claim_once(kind: str, root: DictConfig) -> Path:
    if kind not in _claimed:
        tracking = section({"tracking": OmegaConf.to_container(root.get("tracking", {}), resolve=True)}, "tracking")
        moment = day.now(tracking.timezone)
        if ranks.is_main():
            directory = day.claim(outputs_directory(tracking), moment, "sweep-" if kind == "sweep" else "")
            atexit.register(_remove_if_empty, directory)
            ranks.agree(kind, str(directory))
        else:
            directory = Path(ranks.agree(kind, ""))
        _claimed[kind] = directory
        _claimed_at[directory] = moment
    return _claimed[kind]


def _remove_if_empty(directory: Path) -> None:
    """A program that ended before it opened a run (debug=shapes, a data file that is not there) leaves no directory."""
    for path in (directory, directory.parent):
        try:
            path.rmdir()
        except OSError:
            return


class Preflight:
    """The Hydra callback that checks a config before Hydra makes a directory for it.

    Hydra turns a callback's exception into a warning and goes on, but lets SystemExit through. Nothing depends on this check
    having run: `open_run` repeats it.
    """

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        try:
            app = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
            check(app)
            target = OmegaConf.to_container(config.hydra.run, resolve=False)["dir"]  # type: ignore
            if "${" not in str(target):
                refuse_used(Path(str(target)).absolute(), resume=config.get("resume"))
        except ConfigError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(1) from None

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None: ...
    def on_run_end(self, config: DictConfig, **_: Any) -> None: ...
    def on_multirun_end(self, config: DictConfig, **_: Any) -> None: ...
    def on_job_start(self, config: DictConfig, **_: Any) -> None: ...
    def on_job_end(self, config: DictConfig, **_: Any) -> None: ...


def refuse_used(directory: Path, resume: object = None) -> None:
    """A directory that holds a run is not used for another.

    Raises:
        ConfigError: it holds a run and this is no resume.
    """
    if resume is None and day.is_run(directory):
        raise ConfigError(
            f"{directory}: this directory holds a run already; leave hydra.run.dir alone to get a new one"
        )


# ---------------------------------------------------------------- resolving and checking


def outputs_directory(tracking: Tracking, root: Path | None = None) -> Path:
    """The absolute path of the directory of the days."""
    return ((root or day.project_root()) / Path(tracking.outputs).expanduser()).absolute()


def section(config: Mapping[str, Any], name: str) -> Any:
    """The typed settings of one section of a resolved config; the defaults where it has none.

    Raises:
        ConfigError: a key that does not exist (names the nearest one that does), or a value of the wrong type.
    """
    schema = SCHEMAS[name]
    given = config.get(name) or {}
    if unknown := [key for key in given if key not in schema.__dataclass_fields__]:
        near = difflib.get_close_matches(unknown[0], schema.__dataclass_fields__, n=1)
        hint = f"did you mean {name}.{near[0]}?" if near else f"it knows {', '.join(schema.__dataclass_fields__)}"
        raise ConfigError(f"{name}.{unknown[0]}: no such setting; {hint}")
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.create(dict(given))))
    except OmegaConfBaseException as error:
        key = f"{name}.{error.key}" if error.key else name
        raise ConfigError(f"{key}: {str(error).splitlines()[0]}") from None


def resolve(config: DictConfig | Mapping[str, Any] | None) -> dict[str, Any]:
    """A config as plain data: every interpolation evaluated, once; nothing missing.

    When `config` is a DictConfig it is resolved in place, so that what the program reads afterwards is what was recorded.

    Raises:
        ConfigError: a value is missing (`???`; all of them are named), an interpolation leads nowhere, a key is no string, or
            a value is not plain data.
    """
    if config is None:
        return {}
    node = config if isinstance(config, DictConfig) else OmegaConf.create(dict(config))
    if missing := sorted(OmegaConf.missing_keys(node)):
        keys = ", ".join(missing)
        raise ConfigError(f"{keys}: expected a value, found ??? (missing); give it as {missing[0]}=…")
    try:
        with read_write(node), open_dict(node):
            OmegaConf.resolve(node)
        # Resolved already; what looks like an interpolation now is text that was escaped.
        plain = OmegaConf.to_container(node, resolve=False)
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
            _check_plain(item, inner)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check_plain(item, f"{key}.{i}")
    elif type(value) not in (str, bool, int, float, type(None)):
        raise ConfigError(
            f"{key}: expected text, a number, true, false, null, a list or a map, found {type(value).__name__}; "
            "write it as text"
        )


def check(config: DictConfig) -> dict[str, Any]:
    """Everything about a config that can be known before training. Returns it resolved.

    Raises:
        ConfigError: see `resolve`, `section` and `check_call`.
    """
    plain = resolve(config.copy())
    for name in SCHEMAS:
        if name in plain:
            section(plain, name)
    for key, node in _targets(plain, ""):
        check_call(key, node)
    return plain


def _targets(value: Any, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        if "_target_" in value:
            yield key, value
        for name, item in value.items():
            yield from _targets(item, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _targets(item, f"{key}.{i}")


def locate(path: str, key: str) -> Callable[..., Any]:
    """The callable of a `_target_`.

    Raises:
        ConfigError: it cannot be imported, or is no callable; says how far the path leads.
    """
    if not isinstance(path, str) or not path:
        raise ConfigError(f"{key}: expected the dotted path of a callable, found {path!r}")
    parts = path.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{key}: expected the dotted path of a callable, found {path!r}")
    found: Any = None
    for n in range(len(parts), 0, -1):
        module = ".".join(parts[:n])
        try:
            found = import_module(module)
            break
        except ModuleNotFoundError as error:
            if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
                raise ConfigError(f"{key}: importing {module} failed: {error}") from error
    else:
        raise ConfigError(
            f"{key}: cannot import {path!r}: there is no module {parts[0]!r}; "
            "check the spelling, or install it (`pip install -e .` for your own package)"
        )
    for i in range(n, len(parts)):
        try:
            found = getattr(found, parts[i])
        except AttributeError:
            near = difflib.get_close_matches(parts[i], dir(found), n=1)
            hint = f"; did you mean {'.'.join([*parts[:i], near[0]])}?" if near else ""
            raise ConfigError(
                f"{key}: cannot import {path!r}: {'.'.join(parts[:i])} has no {parts[i]!r}{hint}"
            ) from None
    if not callable(found):
        raise ConfigError(f"{key}: expected a callable, found {path!r}, which is {type(found).__name__}")
    return found


def check_call(key: str, node: Mapping[str, Any]) -> None:
    """Check that a `_target_` exists, takes the arguments it is given, and that plain values have the annotated types.

    Arguments that the program adds itself (`params`, `optimizer`, …) may be missing here.

    Raises:
        ConfigError: names the key, what the callable expects and what was found.
    """
    target = locate(node["_target_"], f"{key}._target_" if key else "_target_")
    try:
        signature = inspect.signature(target)
    except (ValueError, TypeError):
        return  # a builtin that does not tell
    parameters = signature.parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    try:
        hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except Exception:  # annotations are anybody's code; without them there is nothing to check
        hints = {}
    for name, value in node.items():
        if name.startswith("_") and name.endswith("_"):
            continue  # Hydra's own: _target_, _partial_, …
        where = f"{key}.{name}" if key else name
        parameter = parameters.get(name)
        if parameter is None or parameter.kind in (
            parameter.POSITIONAL_ONLY,
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            if takes_any:
                continue
            names = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(names)}"
            raise ConfigError(f"{where}: {node['_target_']} takes no argument {name!r}; {hint}")
        if name in hints and not _fits(value, hints[name]):
            raise ConfigError(
                f"{where}: expected {_type_name(hints[name])} (from {node['_target_']}), "
                f"found {value!r} ({type(value).__name__})"
            )


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value can be what an annotation asks for; True where that cannot be told.

    null fits everything: it stands for what the program finds out later.
    """
    if value is None:
        return True
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if isinstance(value, dict):
        return True  # may be a nested _target_
    if hint is type(None):
        return False
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str)
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            return False
        arguments = [a for a in typing.get_args(hint) if a is not Ellipsis]
        if origin is tuple and Ellipsis not in typing.get_args(hint) and arguments:
            return len(value) == len(arguments) and all(map(_fits, value, arguments))
        return not arguments or all(_fits(item, arguments[0]) for item in value)
    if inspect.isclass(hint) and type(value) in (str, bool, int, float, list):
        # A plain value for a parameter that wants some class (a Tensor, a Path): only the sure mismatch is refused.
        return not hint.__module__.startswith("torch")
    return True


def _type_name(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_name(option) for option in typing.get_args(hint))
    if hint is type(None):
        return "null"
    return hint.__name__ if inspect.isclass(hint) and origin is None else str(hint).removeprefix("typing.")


def fill(config: DictConfig, key: str, **found: Any) -> None:
    """Put what was found out at the start (a table's width, its task) where the config says null.

    So the recorded config is complete: a model can be rebuilt from it without the data. A value that the config already has must
    agree with what was found.

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
            elif (list(given) if isinstance(given, ListConfig) else given) != value:
                raise ConfigError(f"{key}.{name}: the config says {given}, the data says {value}")
