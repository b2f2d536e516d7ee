"""The allow-list of `_target_`s: which callables a config that comes from disk may name.

The config on the command line is the user's own, and Hydra's target policy is enough for it. A card may come from
anywhere, and Hydra's block-list lets `torch.load` or `pathlib.Path.write_text` through. So a card may name the modules,
optimizers and schedulers (classes of those kinds, under public names) of `torch.nn` and `torch.optim`, what `daypoint.zoo`
defines, the very `_target_`s that the project's own `conf/` names, and what is defined in the modules that its
pyproject.toml lists. No function of torch's is among them: some call what they are given.

    [tool.daypoint]
    allow = ["my_package"]

This module calls nothing; a path outside of the list is not even imported.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from daypoint.base import files
from daypoint.base.errors import ConfigError
from daypoint.record import targets

TORCHS = ("torch.nn", "torch.optim")
OURS = ("daypoint.zoo",)
MODULES = (*TORCHS, *OURS)
"""Where what every card may name is defined."""

_PARTS = {
    ("torch.nn.modules.module", "Module"),
    ("torch.optim.optimizer", "Optimizer"),
    ("torch.optim.lr_scheduler", "LRScheduler"),
}

_TARGET = re.compile(r"""^[\s-]*["']?_target_["']?\s*:\s*["']?([\w.]+)["']?\s*(?:#.*)?$""", re.MULTILINE)


def of_project(root: Path) -> tuple[str, ...]:
    """What a project allows besides `MODULES`: its own list, and the `_target_`s in its conf/.

    Raises:
        ConfigError: the list in pyproject.toml is no list of module names.
    """
    named = {
        name
        for path in sorted(root.glob("conf/**/*.yaml"))
        for name in _TARGET.findall(files.read_bytes(path).decode("utf-8", "replace"))
    }
    return (*_listed(root / "pyproject.toml"), *sorted(named))


def _listed(path: Path) -> list[str]:
    try:
        document = tomllib.loads(files.read_bytes(path).decode())
    except FileNotFoundError:
        return []
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected TOML: {error}") from error
    allow = document.get("tool", {}).get("daypoint", {}).get("allow", [])
    if not isinstance(allow, list) or not all(isinstance(name, str) and name for name in allow):
        raise ConfigError(f"{path}: tool.daypoint.allow: expected a list of module names, found {allow!r}")
    return allow


def check(config: Mapping[str, Any], allow: Iterable[str], key: str = "") -> None:
    """Refuse a config that names a `_target_` outside of the list.

    A module in the list stands for what is defined in it and below it, not for what it has imported
    (`torch.nn.functional.torch.hub.load` is not torch.nn's). A dotted path that is in the list as a whole is
    taken as it is.

    Args:
        config: plain data.
        allow: modules and dotted paths, besides `MODULES`.
        key: where in the whole config this part stands.

    Raises:
        ConfigError: names the key and the way to allow it.
    """
    allow = tuple(allow)
    for where, node in targets.find(config, key):
        path = node["_target_"]
        where = f"{where}._target_" if where else "_target_"
        if path in allow:
            continue
        text = f"{path}"
        is_public = "._" not in text
        ours = [module for module in OURS if text.startswith(f"{module}.") and is_public]
        listed = [*ours, *(module for module in allow if text.startswith(f"{module}."))]
        torchs = [module for module in TORCHS if text.startswith(f"{module}.") and is_public]
        if listed or torchs:
            found = targets.locate(path, where)
            if _is_defined_in(found, listed) or (
                _is_defined_in(found, torchs) and _is_part_of_a_model(found)
            ):
                continue
        raise ConfigError(
            f"{where}: expected something from {', '.join(MODULES)} or from this project's conf/, found {path!r} in a config "
            f'that comes from disk; if you trust it: [tool.daypoint] allow = ["{path}"] in pyproject.toml'
        )


def _is_part_of_a_model(found: Any) -> bool:
    # By name, so that this module need not import torch.
    return inspect.isclass(found) and any(
        (base.__module__, base.__name__) in _PARTS for base in found.__mro__
    )


def _is_defined_in(found: Any, modules: list[str]) -> bool:
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        return False  # a method, a partial, a builtin: no way to tell what it does
    origin = found.__module__
    return any(origin == module or origin.startswith(f"{module}.") for module in modules)
