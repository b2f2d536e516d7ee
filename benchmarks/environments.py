"""A virtual environment for each peer, made when it is first needed and kept for the next time.

Each sees the packages of the environment that runs the benchmark (torch above all) behind its own, so that only the peer and what
it lacks are installed.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import venv
from pathlib import Path

INSTALL_SECONDS = 900


class Unavailable(Exception):
    """The peer cannot take part; the text says why, in one line."""


def python_with(packages: tuple[str, ...], root: Path) -> str:
    """The interpreter of an environment that has these packages; without any, the present one.

    Raises:
        Unavailable: they cannot be installed.
    """
    if not packages:
        return sys.executable
    directory = root / f"{'-'.join(packages)}-py{sys.version_info.major}.{sys.version_info.minor}"
    python = directory / "bin" / "python"
    done = directory / "installed.txt"
    shared = str(Path(importlib.util.find_spec("torch").origin).parents[1])
    if done.exists() and done.read_text() == shared:
        return str(python)
    try:
        venv.create(directory, clear=True, with_pip=True)
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"no virtual environment: {one_line(str(error))}") from error
    (own,) = directory.glob("lib/python*/site-packages")
    (own / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    install = [str(python), "-m", "pip", "install", "--quiet", *packages]
    try:
        result = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip install {' '.join(packages)}: not done after {INSTALL_SECONDS} s") from None
    if result.returncode != 0:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        raise Unavailable(f"pip install {' '.join(packages)}: {one_line((errors or [result.stderr])[-1])}")
    done.write_text(shared)
    return str(python)


def version_of(python: str, distribution: str) -> str:
    """The version of a distribution in that environment."""
    script = f"from importlib.metadata import version; print(version({distribution!r}))"
    return subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def one_line(text: str) -> str:
    """The last line of a message, without addresses and paths of this machine."""
    last = (text.strip() or "no message").splitlines()[-1]
    return re.sub(r"(?:https?|file)://\S+|(?<!\w)/\S+", "…", last)[:300]
