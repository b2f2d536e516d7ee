"""The program that made a run: where it is in today's project, and how it is started.

A record is data from disk, so it cannot start just any program: the script must lie in the project around the working directory
(or in that of the outputs directory). It need not be train.py; any program does whose config Hydra composes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from daypoint.base import day
from daypoint.base.errors import RunError
from daypoint.base.redaction import HIDDEN
from daypoint.record.catalog import StoredRun


@dataclass(frozen=True)
class Script:
    """How the script of a run is started.

    Attributes:
        root: the project.
        path: the file.
        module: its name, if it was started with `python -m`.
        directory: where to start it.
        ranks: in how many processes; with several, `torchrun` starts them on this machine.
    """

    root: Path
    path: Path
    module: str | None
    directory: Path
    ranks: int

    @property
    def program(self) -> list[str]:
        """What Python is given to start it."""
        return ["-m", self.module] if self.module is not None else [str(self.path)]

    @property
    def training_command(self) -> list[str]:
        """The beginning of the command line that trains, in all ranks."""
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={self.ranks}"]
        return [sys.executable, *(torchrun if self.ranks > 1 else ()), *self.program]

    @property
    def imports_from(self) -> Path:
        """What Python puts first on its path."""
        return self.directory if self.module is not None else self.path.parent

    def __str__(self) -> str:
        return " ".join(["python", *self.program])


def find(run: StoredRun, outputs: Path, given: Path | None = None) -> Script:
    """The script that made a run, in the project around the working directory, or else in that of the outputs.

    It lies there where it lay in its own project, which may have been moved since.

    Args:
        given: the script, when it cannot be told from the record.

    Raises:
        RunError: there is none, or its config is not Hydra's.
    """
    record, first = run.record, run.record["attempts"][0]
    again = f"run it yourself, then compare: daypoint reproduce {run.address} --against last"
    if not record.get("choices"):
        raise RunError(
            f"{run.address}: expected a run whose config Hydra composed, found one without; its script cannot be given a "
            f"config: {again}"
        )
    started_in = Path(first.get("cwd") or record["root"])
    roots = (day.project_root(Path.cwd()), day.project_root(outputs))
    if given is not None:
        path = given.expanduser().absolute()
        if not path.is_file():
            raise RunError(f"--script: expected a Python script, found no file {path}")
        root, module = day.project_root(path.parent), None
    else:
        recorded = Path(os.path.normpath(started_in / (first["argv"] or ["-c"])[0]))
        inside = _below(recorded, Path(record["root"]))
        root = next((root for root in roots if inside is not None and (root / inside).is_file()), None)
        if root is None or inside is None:
            raise RunError(
                f"{run.address}: expected its script {inside or recorded} in the project {roots[0]}, found none; "
                "cd to the project, or say which: --script PATH"
            )
        path, module = root / inside, first.get("module")
    place = _below(started_in, Path(record["root"]))
    directory = root / place if place is not None else started_in
    # Python looks for a module in the working directory first, so that must be the project's too.
    parts = tuple((module or "").split("."))
    if place is None or path.with_suffix("").parts[-len(parts) :] != parts:
        module = None
    return Script(
        root, path, module, directory if directory.is_dir() else root, int(record.get("ranks") or 1)
    )


def _below(path: Path, parent: Path) -> Path | None:
    return path.relative_to(parent) if path.is_relative_to(parent) and ".." not in path.parts else None


def config_of_today(record: Mapping[str, Any], script: Script) -> DictConfig:
    """What the script's own config is now, not resolved; empty if it cannot be had."""
    # No flag, and nothing about Hydra itself: `--experimental-rerun=FILE` would unpickle what a record names.
    overrides = [
        text
        for text in record["attempts"][0]["overrides"]
        if HIDDEN not in text and not text.lstrip("+~").startswith(("-", "hydra"))
    ]
    done = subprocess.run(
        [sys.executable, *script.program, *overrides, "--cfg", "job"],
        cwd=script.directory,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        found = OmegaConf.create(done.stdout) if done.returncode == 0 else None
    except (YAMLError, OmegaConfBaseException):
        found = None
    return found if isinstance(found, DictConfig) else OmegaConf.create({})
