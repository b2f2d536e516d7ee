"""Packaging in the background: after the run, in another process, one after the other, and what goes wrong is kept."""

import contextlib
import sqlite3
import time

import pytest
import saved_models
from saved_models import save, zoo

from daypoint.models import load
from daypoint.record import identity
from daypoint.tracking import store
from daypoint.tracking.packager import Packager

# The courier prepares a store and imports mlflow, and each model imports torch and mlflow again.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("warm_python"),
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
]


def until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.2)


def aliases(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT name, alias, version FROM registered_model_aliases").fetchall()


def test_a_run_that_asks_for_it_is_packaged_after_its_end(project):
    done = project.train("model=linear", "trainer.epochs=1", "tracking.package=true")
    assert "being packaged in the background" in done.stdout
    assert "daypoint package" not in done.stdout
    (run,) = project.runs()
    until(lambda: aliases(project.store))
    assert aliases(project.store) == [("digits", run.parent.name, 1)]
    assert not (run / "courier.log").exists()


def test_a_run_that_does_not_ask_is_told_how(project):
    done = project.train("model=linear", "trainer.epochs=1")
    (run,) = project.runs()
    assert f"daypoint package {run.parent.name}/{run.name}" in done.stdout
    assert not (run / "mlflow_model").exists()


def test_every_job_of_a_sweep_is_packaged(project):
    project.train("-m", "model=linear", "trainer.epochs=1", "trainer.seed=0,1", "tracking.package=true")
    runs = project.runs()
    until(lambda: all((run / "mlflow_model" / "daypoint.json").exists() for run in runs))
    best = load.choose(runs[0].parent.parent.name, project.outputs).card["uid"]
    question = (
        "SELECT t.value FROM registered_model_aliases a JOIN model_version_tags t "
        "ON t.name = a.name AND t.version = a.version AND t.key = 'daypoint.uid'"
    )
    with contextlib.closing(sqlite3.connect(project.store)) as database:
        until(lambda: database.execute("SELECT COUNT(*) FROM model_versions").fetchone() == (2,))
        until(lambda: database.execute(question).fetchall() == [(best,)])


@pytest.fixture
def root(tmp_path, monkeypatch):
    root = tmp_path / "project"
    root.mkdir()
    (root / "pyproject.toml").touch()
    monkeypatch.chdir(root)
    store.prepare(f"sqlite:///{root}/mlruns/mlflow.db")
    return root


def finished(packager):
    until(lambda: packager.look() or not packager.is_busy)


def test_one_that_cannot_be_packaged_is_named_and_the_next_one_is(root):
    data = saved_models.digits()
    bad = save(root, {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 1})
    good = save(root, zoo("Linear", data), data=data)
    complaints = []
    packager = Packager(lambda directory, text: complaints.append((directory, text)))
    for run in (bad, good):
        packager.take(run.directory, identity.read_run(run.directory), f"sqlite:///{root}/mlruns/mlflow.db")
    finished(packager)
    ((directory, text),) = complaints
    assert directory == bad.directory
    assert "expected data.input_shape in its config" in text
    assert f"daypoint package {bad.directory}" in text
    assert (good.directory / "mlflow_model" / "MLmodel").exists()


def test_one_that_takes_too_long_is_stopped(root, monkeypatch):
    data = saved_models.digits()
    run = save(root, zoo("Linear", data), data=data)
    monkeypatch.setattr("daypoint.tracking.packager.SECONDS", 0.5)
    complaints = []
    packager = Packager(lambda directory, text: complaints.append(text))
    packager.take(run.directory, identity.read_run(run.directory), f"sqlite:///{root}/mlruns/mlflow.db")
    finished(packager)
    (text,) = complaints
    assert "took more than" in text
    assert not (run.directory / "mlflow_model").exists()


def test_what_is_left_at_the_end_is_said(root):
    data = saved_models.digits()
    runs = [save(root, zoo("Linear", data), data=data) for _ in range(2)]
    complaints = []
    packager = Packager(lambda directory, text: complaints.append(text))
    for run in runs:
        packager.take(run.directory, identity.read_run(run.directory), f"sqlite:///{root}/mlruns/mlflow.db")
    packager.leave("was told to stop")
    assert [text.rpartition(" ")[2] for text in complaints] == [str(run.directory) for run in runs]
    finished(packager)
