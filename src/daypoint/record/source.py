"""The source files of the project that a config's classes come from, and whether they are still the same.

Read from the `import` lines, nothing is imported or run: from the module that a `_target_` names, on to what that imports, as far
as it lies in the project. Installed packages are known by their version, not by their files, and daypoint is one of them.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from daypoint.base import files
from daypoint.record import targets

_INSTALLED = {"site-packages", "dist-packages"}


@dataclass(frozen=True)
class Difference:
    """A module whose source is not the recorded one.

    Attributes:
        file: where it was, relative to the project.
        sha256: what it was.
        found: the file that `import` would take now; None if there is none.
        found_sha256: what that is.
    """

    module: str
    file: str
    sha256: str
    found: Path | None
    found_sha256: str | None

    def __str__(self) -> str:
        now = (
            f"{self.found} ({self.found_sha256[:12]})"
            if self.found is not None and self.found_sha256
            else "nothing"
        )
        return f"module {self.module}: expected {self.file} ({self.sha256[:12]}), found {now}"


def recorded(node: Any, root: Path) -> dict[str, dict[str, str]]:
    """The project's modules that the `_target_`s of a config need, as far as this process has imported them.

    Args:
        node: a part of a config, plain data.
        root: the project, absolute.

    Returns:
        For each module its "file", relative to the project, and the file's "sha256".
    """
    found: dict[str, dict[str, str]] = {}
    waiting = [
        module for _, target in targets.find(node) for module in _with_parents(str(target["_target_"]))
    ]
    while waiting:
        name = waiting.pop()
        path = None if name in found else _file_of_imported(name, root)
        if path is not None:
            content = files.read_bytes(path)
            found[name] = {
                "file": path.relative_to(root).as_posix(),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
            for imported in _imports(content, name, path.name == "__init__.py"):
                waiting += _with_parents(imported)
    return dict(sorted(found.items()))


def differences(code: Mapping[str, Mapping[str, str]], root: Path) -> list[Difference]:
    """The recorded modules that `import` would not give as they were.

    Args:
        code: as `recorded` gave it.
        root: the project; what is imported from another place is no difference if its content is the same.
    """
    changed = []
    for name, was in code.items():
        path = _file_to_import(name)
        sha256 = None if path is None else hashlib.sha256(files.read_bytes(path)).hexdigest()
        if sha256 != was["sha256"]:
            changed.append(Difference(name, was["file"], was["sha256"], path, sha256))
    return changed


def place(module: str, file: str, root: Path) -> Path | None:
    """Where in the project a recorded file may be imported from; None for a path that is no place of that module.

    A card is data from disk. Only the project's root, its `src` and directories on `sys.path` hold modules; what lies elsewhere,
    below `outputs` for example, is never run.
    """
    parts = module.split(".")
    for directory in (root, root / "src", *map(Path, sys.path)):
        for tail in (Path(*parts).with_suffix(".py"), Path(*parts, "__init__.py")):
            path = directory / tail
            if directory.is_relative_to(root) and path.relative_to(root).as_posix() == file:
                return path
    return None


def _with_parents(path: str) -> list[str]:
    """`a.b.C`: a, a.b and a.b.C, of which those that are no modules are not found."""
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


def _file_of_imported(name: str, root: Path) -> Path | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or name.partition(".")[0] in ("daypoint", "__main__"):
        return None
    path = Path(file).absolute()
    is_own = path.suffix == ".py" and path.is_relative_to(root) and not _INSTALLED & set(path.parts)
    return path if is_own and path.is_file() else None


def _file_to_import(name: str) -> Path | None:
    """The file that `import name` takes: the one that is imported already, else the one that would be found."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
    else:
        file, places = None, None
        for parent in _with_parents(name):  # by hand, since importlib.util.find_spec would run the parents
            spec = PathFinder.find_spec(parent, places)
            if spec is None:
                return None
            file, places = spec.origin, spec.submodule_search_locations
    path = None if file is None else Path(file)
    return path if path is not None and path.is_file() else None


def _imports(content: bytes, module: str, is_package: bool) -> Iterator[str]:
    """The dotted names that a module imports, wherever in it; of `from a import b` both a and a.b."""
    try:
        tree = ast.parse(content)
    except SyntaxError:
        return  # it was edited since it was imported
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".") if is_package else module.split(".")[:-1]
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
