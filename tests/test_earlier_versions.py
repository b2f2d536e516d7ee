"""What an earlier version left behind is read, resumed, reproduced and served by this one.

`data/project-0.1.0` is a project as daypoint 0.1.0 made it, when its modules still lay on one floor: a run with a packaged model
and a sweep of three jobs, of which the last failed. Its store is not kept: `daypoint sync --rebuild` makes it.
"""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from projects import Project

import daypoint

DAY = "20261207"
RUN = f"{DAY}/124824-577397"
SWEEP = f"{DAY}/sweep-124835-192403"


@pytest.fixture
def earlier(tmp_path):
    shutil.copytree(Path(__file__).parent / "data" / "project-0.1.0", tmp_path / "project")
    return Project(tmp_path / "project")


def test_its_runs_are_read_verified_and_loaded(earlier):
    runs = daypoint.runs(outputs=earlier.outputs)
    assert list(runs["status"]) == ["FINISHED", "FINISHED", "FINISHED"]
    assert runs["best(val/accuracy)"].iloc[0] == pytest.approx(0.8579, abs=1e-4)
    assert daypoint.points(RUN, outputs=earlier.outputs)["loss"].count() == 46
    model = daypoint.load(RUN, outputs=earlier.outputs)
    assert model.card["step"] == 46
    assert "ok" in earlier.daypoint("verify", DAY).stdout


@pytest.mark.slow
def test_its_run_is_resumed_and_reproduced(earlier):
    earlier.train(f"resume={RUN}", "trainer.epochs=3")
    record = json.loads((earlier.outputs / RUN / "run.json").read_text())
    assert (record["status"], len(record["attempts"])) == ("FINISHED", 2)
    assert daypoint.points(RUN, outputs=earlier.outputs)["loss"].count() == 69
    again = earlier.daypoint("reproduce", f"{SWEEP}/0", check=False)
    # The values are compared; that this machine has other versions or another processor is no fault of the record.
    assert again.returncode in (0, 1), again.stdout + again.stderr
    assert "23 steps" in again.stdout


@pytest.mark.slow
def test_its_sweep_goes_on_and_only_the_failed_job_is_tried_again(earlier):
    done = earlier.train("-m", f"sweep.resume={SWEEP}", check=False)
    assert done.returncode == 1  # optimizer.lr=none_such is still not a number
    assert "2 jobs are done already" in done.stdout or "3 jobs" in done.stdout, done.stdout
    manifest = json.loads((earlier.outputs / SWEEP / "sweep.json").read_text())
    assert [job["status"] for job in manifest["jobs"].values()] == ["FINISHED", "FINISHED", "FAILED"]


@pytest.mark.slow
def test_its_store_is_rebuilt_and_its_packaged_model_answers(earlier):
    earlier.daypoint("sync", "--rebuild", "--uri", "sqlite:///mlruns/mlflow.db")
    with sqlite3.connect(earlier.store) as database:
        (count,) = database.execute("SELECT COUNT(*) FROM metrics WHERE key = 'loss'").fetchone()
    assert count == 46 + 23 + 23
    script = (
        "import mlflow, numpy; mlflow.set_tracking_uri('sqlite:///mlruns/mlflow.db');"
        f"model = mlflow.pyfunc.load_model('models:/digits@{DAY}');"
        "print(model.predict(numpy.zeros((3, 1, 8, 8), dtype='float32')).shape)"
    )
    assert earlier.python("-c", script).stdout.split("\n")[-2] == "(3, 10)"
