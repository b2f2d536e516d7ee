"""A project of its own for a test, and commands run in it as a user runs them."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import warm

REPOSITORY = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent


def clean_environment(**more):
    """The environment without what would change where a run goes."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("MLFLOW_", "DAYPOINT_", "HYDRA_"))
        and key not in ("RANK", "WORLD_SIZE", "COLUMNS")
    }
    return {**kept, **more}


@dataclass
class Project:
    """A directory with train.py and conf/ in it, like a fresh clone."""

    root: Path

    @property
    def outputs(self):
        return self.root / "outputs"

    @property
    def store(self):
        return self.root / "mlruns" / "mlflow.db"

    def python(self, *arguments, cwd=None, check=True, timeout=300, cold=False, **environment):
        """Run python with these arguments; the completed process, with text output. Warm, unless told otherwise (`warm.py`)."""
        done = subprocess.run(
            [warm.COLD if cold else warm.python(), *map(str, arguments)],
            cwd=cwd or self.root,
            env=clean_environment(**environment),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def train(self, *overrides, **options):
        """`python train.py …`."""
        return self.python(self.root / "train.py", *overrides, **options)

    def daypoint(self, *arguments, **options):
        """`daypoint …`."""
        return self.python("-m", "daypoint", *arguments, **options)

    def start(self, *arguments, cold=False, **environment):
        """A python process in the background (for SIGKILL not a warm one), in a process group of its own; its output can be read."""
        return subprocess.Popen(
            [warm.COLD if cold else warm.python(), *map(str, arguments)],
            cwd=self.root,
            env=clean_environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def runs(self):
        """The run directories, oldest first."""
        from daypoint.base import day

        return day.run_directories(self.outputs)


def make_project(root):
    root.mkdir(parents=True, exist_ok=True)
    shutil.copy(REPOSITORY / "train.py", root)
    shutil.copytree(REPOSITORY / "conf", root / "conf")
    (root / "pyproject.toml").touch()  # what makes a directory a project
    return Project(root)
