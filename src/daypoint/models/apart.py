"""Import a model's code as it was when the model was trained, beside what this process has imported under the same names.

A module name says little: two projects may each have a `net.py`, and a file may have been edited since. The identity card has the
hash of each file. If those files are still in the project, or in its git history, they are imported apart, each under a name of its
own; the modules that other code uses stay as they are. This module decides nothing about what a card may call (`allowlist`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import re
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from daypoint.base import files
from daypoint.base.errors import CheckpointError
from daypoint.record import source

_GIT_SECONDS = 10


@contextlib.contextmanager
def code_of(card: Mapping[str, Any], root: Path, where: str) -> Iterator[None]:
    """A block in which `import` gives the project's modules as the card recorded them.

    Args:
        card: an identity card; one without "code", as older versions wrote it, changes nothing.
        root: the project that the files are taken from.
        where: how the card is called in an error.

    Raises:
        CheckpointError: a module is not as it was, and the file as it was is neither in the project nor in its history; says
            which module, both files and both hashes.
    """
    code = card.get("code") or {}
    changed = source.differences(code, root)
    if not changed:
        yield
        return
    commit = (card.get("git") or {}).get("commit")
    found = {name: _content(name, was, root, commit) for name, was in code.items()}
    lost = [difference for difference in changed if found[difference.module] is None]
    if lost:
        was = f"check out commit {commit[:12]} for the code as it was" if commit else "restore the file"
        raise CheckpointError(
            f"{where}: the code of the model is not what it was trained with: {'; '.join(map(str, lost))}; "
            f"{was}, or load the weights into a model that you build yourself: daypoint.load(ADDRESS, model=MODEL)"
        )
    # By the hashes of all files: a module that is the same may import one that is not.
    tag = hashlib.sha256("".join(was["sha256"] for was in code.values()).encode()).hexdigest()[:12]
    own_names = {name: f"{name}@{tag}" for name in code}
    others = {name: sys.modules.pop(name) for name in code if name in sys.modules}
    sys.modules.update({name: sys.modules[own] for name, own in own_names.items() if own in sys.modules})
    finder = _Recorded({name: content for name, content in found.items() if content is not None})
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, own in own_names.items():
            if (module := sys.modules.pop(name, None)) is not None:
                _rename(module, name, own)
                sys.modules[own] = module
        sys.modules.update(others)


def _rename(module: types.ModuleType, name: str, own: str) -> None:
    """Let what is defined in a module say under which name it can be found."""
    module.__name__ = own
    for value in vars(module).values():
        if getattr(value, "__module__", None) == name and isinstance(value, type | types.FunctionType):
            value.__module__ = own


def _content(module: str, was: Mapping[str, str], root: Path, commit: object) -> tuple[Path, bytes] | None:
    """A recorded file as it was, from the project or from its history."""
    path = source.place(module, was["file"], root)
    if path is None:
        return None
    candidates = [partial(files.read_bytes, path)] if path.is_file() else []
    if isinstance(commit, str) and re.fullmatch(r"[0-9a-f]{40,64}", commit):
        candidates.append(lambda: _committed(root, commit, was["file"]))
    for read in candidates:
        content = read()
        if hashlib.sha256(content).hexdigest() == was["sha256"]:
            return path, content
    return None


def _committed(root: Path, commit: str, file: str) -> bytes:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(root), "cat-file", "blob", f"{commit}:./{file}"]
        return subprocess.run(command, capture_output=True, check=True, timeout=_GIT_SECONDS).stdout
    return b""


class _Recorded(MetaPathFinder, InspectLoader):
    """Finds and loads modules whose content is given."""

    def __init__(self, contents: Mapping[str, tuple[Path, bytes]]) -> None:
        self._contents = contents

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._contents:
            return None
        file = self._contents[name][0]
        spec = ModuleSpec(name, self, origin=str(file), is_package=file.name == "__init__.py")
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(str(file.parent))
        spec.has_location = True
        return spec

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._contents[fullname][1])

    def is_package(self, fullname: str) -> bool:
        return self._contents[fullname][0].name == "__init__.py"

    def exec_module(self, module: types.ModuleType) -> None:
        path, content = self._contents[module.__name__]
        exec(compile(content, str(path), "exec", dont_inherit=True), module.__dict__)
