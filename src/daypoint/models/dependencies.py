"""Finds what a model's class needs where the model is rebuilt: files of the project, packages to install.

It reads `import` lines and runs nothing: first those of the module that a `_target_` names, then those of what that module
imports. What lies in the project is copied; what is installed, daypoint included, becomes a requirement with its version.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daypoint.base import files
from daypoint.record import targets


def collect(node: Any, root: Path) -> tuple[dict[str, Path], list[str]]:
    """The code and the packages that the `_target_`s of a config need.

    Args:
        node: a part of a config.
        root: the project, absolute.

    Returns:
        The project's files and package directories by the name they are imported under; the requirements.
    """
    waiting = [str(found["_target_"]).partition(".")[0] for _, found in targets.find(node)]
    inside: dict[str, Path] = {}
    distributions = importlib.metadata.packages_distributions()
    required: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in inside or name in sys.stdlib_module_names:
            continue
        path = None if name == "daypoint" else _in_project(name, root)
        if path is not None:
            inside[name] = path
            waiting += _imported(path)
        elif name in distributions or name == "daypoint":
            required.add(requirement(distributions.get(name, [name])[0]))
    return inside, sorted(required)


def requirement(distribution: str) -> str:
    """`torch==2.13.0`: the installed version, without the part that only one machine's build has (`+cpu`)."""
    return f"{distribution}=={importlib.metadata.version(distribution).partition('+')[0]}"


def copy(inside: dict[str, Path], target: Path) -> None:
    """Copy what `collect` found into a new directory from which it can be imported."""
    target.mkdir()
    leave = shutil.ignore_patterns("__pycache__", ".*")
    for path in inside.values():
        if path.is_dir():
            shutil.copytree(path, target / path.name, ignore=leave)
        else:
            shutil.copy(path, target)


def _in_project(name: str, root: Path) -> Path | None:
    """The file or the directory of a top-level module, if it is the project's own."""
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    path = Path([*(spec.submodule_search_locations or ()), spec.origin or ""][0]).absolute()
    is_own = path.is_relative_to(root) and not {"site-packages", "dist-packages"} & set(path.parts)
    return path if is_own and path.exists() else None


def _imported(path: Path) -> Iterator[str]:
    """The top-level names that the files of a module import, wherever in them."""
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        try:
            tree = ast.parse(files.read_bytes(file))
        except SyntaxError:
            continue  # what cannot be parsed is not what was just imported
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                yield node.module.partition(".")[0]
