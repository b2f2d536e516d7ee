"""`daypoint package` and `daypoint promote`, run as a user runs them."""

import json
import shutil
import subprocess
import sys
import textwrap

import pytest
from projects import clean_environment

from daypoint.record import pins

pytestmark = pytest.mark.slow  # each command imports torch and mlflow


def test_package_says_what_it_made_and_how_to_serve_it(project, tmp_path):
    project.train("model=linear", "trainer.epochs=1")
    (run,) = project.runs()
    day = run.parent.name
    done = project.daypoint("package", "today", "--outputs", project.outputs, cwd=tmp_path)
    address = f"models:/digits@{day}"
    assert done.stderr == ""
    assert "(pt2, 0.0" in done.stdout
    assert f"registered model digits, version 1: {address}" in done.stdout
    store, example = f"sqlite:///{project.store}", run / "mlflow_model" / "serving_input_example.json"
    assert (
        f"MLFLOW_TRACKING_URI={store} mlflow models predict -m {address} -i {example} --env-manager local"
        in done.stdout
    )
    assert f"mlflow models serve -m {address} --env-manager local" in done.stdout
    assert "ok" in project.daypoint("verify", "today").stdout


def test_a_module_beside_train_py_is_found(project):
    (project.root / "mine.py").write_text(
        "import torch\n\n\nclass Mine(torch.nn.Linear):\n    def forward(self, x):\n        return super().forward(x.flatten(1))\n"
    )
    (project.root / "conf" / "model" / "mine.yaml").write_text(
        "_target_: mine.Mine\nin_features: 64\nout_features: 10\n"
    )
    project.train("model=mine", "trainer.epochs=1")
    done = project.daypoint("package", "last")
    assert "(pt2, " in done.stdout


def test_a_script_without_an_input_shape_is_told_about_example(project):
    (project.root / "script.py").write_text(
        textwrap.dedent(
            """
            import daypoint, numpy, torch

            config = {"model": {"_target_": "torch.nn.Linear", "in_features": 4, "out_features": 1}}
            model = daypoint.instantiate(config["model"])
            with daypoint.open_run(config, monitor="loss") as run:
                for _ in run.epochs(1):
                    run.log(loss=1.0)
                run.save(model=model)
            numpy.save("example.npy", numpy.zeros((1, 4)))
            """
        )
    )
    project.python("script.py")
    refused = project.daypoint("package", "last", check=False)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "daypoint package ADDRESS --example FILE.npy" in refused.stderr
    done = project.daypoint("package", "last", "--example", "example.npy")
    assert "models:/script@" in done.stdout
    split = json.loads((project.runs()[0] / "mlflow_model" / "serving_input_example.json").read_text())
    assert split["dataframe_split"]["columns"] == ["x0", "x1", "x2", "x3"]


SCRIPT = """
import daypoint, torch
with daypoint.open_run({"lr": 0.1, "tracking": {"experiment": "plain"}}, monitor="loss") as run:
    for _ in run.epochs(1):
        run.log(loss=1.0)
    run.save(model=torch.nn.Linear(1, 1))
"""


def test_of_a_day_every_model_is_packaged_that_can_be_and_the_others_are_named(project):
    (project.root / "script.py").write_text(SCRIPT)
    project.python("script.py")
    refused = project.daypoint("package", "today", check=False)
    assert refused.returncode == 1
    project.train("model=linear", "trainer.epochs=1")
    done = project.daypoint("package", "today")
    assert "registered model digits, version 1" in done.stdout
    assert done.stderr.startswith("warning: not packaged: plain: ")
    assert "expected a section `model` with a _target_" in done.stderr
    (project.root / "script.py").write_text(SCRIPT.replace("plain", "other"))
    project.python("script.py")
    (run,) = (run for run in project.runs() if "linear" in (run / "run.json").read_text())
    shutil.rmtree(run)
    refused = project.daypoint("package", "today", check=False)
    assert refused.returncode == 1
    assert "no model of that day can be packaged\n  other: " in refused.stderr
    assert "\n  plain: " in refused.stderr


def test_a_store_that_is_away_is_an_error_that_says_how_to_go_on(project):
    project.train("model=linear", "trainer.epochs=1")
    (run,) = project.runs()
    done = project.daypoint("package", "last", "--uri", "http://127.0.0.1:9", check=False)
    assert done.returncode == 1
    assert "error: not registered yet" in done.stderr
    assert f"daypoint sync {run}" in done.stderr
    assert "models:/digits@" in project.daypoint("sync", run).stdout


def test_promote_moves_the_alias(project):
    project.train("-m", "model=linear", "trainer.epochs=1", "optimizer.lr=0.00001,0.01")
    worse, better = project.runs()
    assert "@" in project.daypoint("package", better).stdout
    assert "alias    " in project.daypoint("package", worse).stdout
    done = project.daypoint("promote", worse)
    assert f"version 2: models:/digits@{done.stdout.split()[1][:8]}" in done.stdout


def test_eight_that_promote_at_once_all_have_their_pin(tmp_path):
    (tmp_path / "20260328").mkdir()
    script = (
        "import sys; from pathlib import Path; from daypoint.record import pins\n"
        "for i in range(20): pins.pin(Path(sys.argv[1]), '20260328', f'{sys.argv[2]}-{i}', uid='u', checkpoint='c')\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script, tmp_path, str(n)], env=clean_environment())
        for n in range(8)
    ]
    assert [process.wait() for process in running] == [0] * 8
    assert len(pins.read_pins(tmp_path, "20260328")) == 160
