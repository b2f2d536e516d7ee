"""The layers of the package: what docs/architecture.md and the contracts in pyproject.toml say is so."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from projects import REPOSITORY

import daypoint
from daypoint.tracking.sync import sync

SOURCE = Path(daypoint.__file__).parent


def python(script):
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_package_is_folders_and_nothing_else():
    assert {path.name for path in SOURCE.glob("*.py")} == {"__init__.py", "__main__.py"}


@pytest.mark.slow
def test_an_import_upwards_is_refused(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "src" / "daypoint")
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    (tmp_path / "src" / "daypoint" / "base" / "upwards.py").write_text(
        "from daypoint.record import journal\n"
    )
    script = "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "daypoint.base is not allowed to import daypoint.record" in done.stdout


def test_importing_daypoint_imports_nothing_heavy():
    heavy = ("torch", "mlflow", "hydra", "numpy", "pandas", "rich", "omegaconf")
    assert python(f"import daypoint, sys; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_the_training_process_never_imports_mlflow():
    assert (
        python("import daypoint.run.run, daypoint.record.catalog, sys; print('mlflow' in sys.modules)")
        == "False"
    )


def test_the_courier_never_imports_torch():
    imports = "daypoint.tracking.delivery, daypoint.tracking.registry"
    assert python(f"import {imports}, sys; print('torch' in sys.modules)") == "False"


def test_every_public_name_can_be_had():
    for name in daypoint.__all__:
        assert getattr(daypoint, name) is not None


def test_one_loss_value_goes_the_way_that_the_page_says(root):
    """Each function that the page names is called, in that order, while one value goes from `log` to the store."""
    import torch

    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    way = re.findall(r"^   (\w+/\w+\.py) +([\w.]+)  ", page, re.M)
    assert len(way) >= 8
    called = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            path = Path(frame.f_code.co_filename).relative_to(SOURCE).as_posix()
            called.append((path, frame.f_code.co_qualname))

    config = {"tracking": {"enabled": False, "outputs": str(root / "outputs")}}
    with daypoint.open_run(config, quiet=True) as run:
        directory = run.directory
        sys.setprofile(profile)
        try:
            run.log(loss=torch.tensor(0.25))
        finally:
            sys.setprofile(None)
    sys.setprofile(profile)
    try:
        sync([directory], uri=f"sqlite:///{root}/mlruns/mlflow.db")
    finally:
        sys.setprofile(None)
    place = 0
    for step in way:
        assert step in called[place:], f"{step} is not called after {way[: way.index(step)]}"
        place = called.index(step, place) + 1
