"""A project that was moved, copied or restored: every command works where it is now, and nothing is written where it was."""

import contextlib
import hashlib
import json
import shutil
import sqlite3
import urllib.request
from pathlib import Path

import pytest
from projects import Project, make_project
from stores import mlflow_run, rows
from waiting import until
from written_runs import unused_port

PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A project with a run whose model is packaged. Tests copy it."""
    project = make_project(tmp_path_factory.mktemp("moved") / "project")
    project.train("experiment=quick")
    project.daypoint("package", "last")
    return project


def everything(root):
    """Each file of a project and the hash of its content."""
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in root.rglob("*") if path.is_file()}


def assert_whole(project, was):
    """Each artifact of the store is in the project, and MLflow gets it from there."""
    for table, column in PLACES:
        for (place,) in rows(project, f"SELECT {column} FROM {table}"):
            assert Path(place).is_relative_to(project.store.parent / "artifacts"), (table, column, place)
    directories = rows(project, "SELECT value FROM tags WHERE key = 'daypoint.directory'")
    assert all(Path(place).is_relative_to(project.root) for (place,) in directories)
    script = (
        "import mlflow, numpy; from mlflow import MlflowClient\n"
        "mlflow.set_tracking_uri('sqlite:///mlruns/mlflow.db'); client = MlflowClient()\n"
        "runs = [run for run in client.search_runs(['1']) if run.data.tags.get('daypoint.kind') != 'sweep']\n"
        "for run in runs:\n"
        "    print(open(client.download_artifacts(run.info.run_id, 'run.json')).read(15))\n"
        "for model in client.search_model_versions():\n"
        "    found = mlflow.pyfunc.load_model(f'models:/{model.name}/{model.version}')\n"
        "    print(found.predict(numpy.zeros((3, 1, 8, 8), dtype='float32')).shape)"
    )
    read = project.python("-c", script).stdout
    assert read.count('"format"') == len(project.runs())
    assert "(3, 10)" in read
    assert not list(project.store.parent.glob("*before-move*"))
    assert not was.exists()


@pytest.mark.slow
def test_after_mv_every_command_works(original, tmp_path):
    was, project = tmp_path / "before", Project(tmp_path / "my project")
    shutil.copytree(original.root, was)
    assert "the project was in" in Project(was).daypoint("sync", "--all").stderr  # this copy is at home now
    was.rename(project.root)  # the same as `mv`

    done = project.train("experiment=quick")
    assert f"the project was in {was}: the artifacts" in done.stdout + done.stderr
    assert_whole(project, was)
    for command in (
        *(
            ["ls", "last 7 days"],
            ["show", "last"],
            ["verify", "today"],
            ["sync", "--all"],
            ["package", "last"],
        ),
        *(["promote", "last"], ["reproduce", "last", "--steps", "5"], ["sync", "--rebuild"]),
    ):
        done = project.daypoint(*command)
        assert str(was) not in done.stdout + done.stderr, command
    first = str(project.runs()[0])
    project.python("-c", "import daypoint, sys; daypoint.load(sys.argv[1])", first)
    project.train(f"resume='{first}'", "trainer.epochs=3")
    assert_whole(project, was)

    again = Project(tmp_path / "third")  # moved once more, after it was resumed at the second place
    project.root.rename(again.root)
    assert "resumed" in again.daypoint("show", str(again.runs()[0])).stdout
    done = again.daypoint("sync", "--all")
    assert "the project was in" in done.stderr
    assert "failed" not in done.stdout
    assert_whole(again, project.root)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [["sync", "--all"], ["package", "last"], ["sync", "--rebuild"], ["reproduce", "last", "--steps", "5"]],
    ids=lambda command: command[0] + command[1].strip("-"),
)
def test_a_copy_has_its_own_store_and_the_original_is_not_touched(original, tmp_path, command):
    before = everything(original.root)
    copy = Project(tmp_path / "copy")
    shutil.copytree(original.root, copy.root)
    copy.daypoint(*command)
    copy.train("experiment=quick")
    assert everything(original.root) == before
    assert_whole(copy, tmp_path / "never")


@pytest.mark.slow
def test_a_copy_of_a_project_that_trains_ends_its_run_and_leaves_the_original_training(project, tmp_path):
    trainer = project.start(project.root / "train.py", "trainer.epochs=100000", "model=linear")
    copy = Project(tmp_path / "copy")
    try:
        until(
            lambda: (
                project.runs() and project.store.exists() and rows(project, "SELECT 1 FROM metrics LIMIT 1")
            ),
            60,
        )
        shutil.copytree(project.root, copy.root)
        (directory,) = copy.runs()
        done = copy.daypoint("sync", "--all")
        assert "KILLED" in done.stdout
        assert json.loads((directory / "run.json").read_text())["status"] == "KILLED"
        assert mlflow_run(copy, directory)[1] == "KILLED"
        (directory,) = project.runs()
        assert json.loads((directory / "run.json").read_text())["status"] == "RUNNING"
        assert mlflow_run(project, directory)[1] == "RUNNING"
        assert trainer.poll() is None
    finally:
        trainer.terminate()
        trainer.communicate(timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["symbolic link", "same directory"])
def test_a_project_that_is_where_it_was_is_left_alone(original, tmp_path, place):
    project = original
    if place == "symbolic link":
        (tmp_path / "link").symlink_to(original.root)
        project = Project(tmp_path / "link")
    before = rows(original, "SELECT artifact_location FROM experiments")
    done = project.daypoint("sync", "--all")
    assert "the project was in" not in done.stderr
    assert rows(original, "SELECT artifact_location FROM experiments") == before


@pytest.mark.slow
def test_a_deleted_store_is_made_anew_and_filled(original, tmp_path):
    project = Project(tmp_path / "restored")
    shutil.copytree(original.root, project.root)
    shutil.rmtree(project.root / "mlruns")
    (earlier,) = project.runs()
    line = f"made a new MLflow store, {project.store}; `daypoint sync --all` sends it every run there is"
    assert line in project.train("experiment=quick").stdout
    assert line not in project.daypoint("sync", "--all").stderr
    assert mlflow_run(project, earlier)[1] == "FINISHED"
    assert_whole(project, tmp_path / "never")
    shutil.rmtree(project.root / "mlruns")
    assert line in project.daypoint("package", "last").stderr


@pytest.mark.slow
def test_the_pages_of_a_moved_project_are_served_from_where_it_is(original, tmp_path):
    project, port = Project(tmp_path / "moved"), unused_port()
    shutil.copytree(original.root, project.root)
    server = project.start("-m", "daypoint", "ui", "--port", port)
    try:
        (run, _) = mlflow_run(project, *project.runs())
        address = f"http://127.0.0.1:{port}/get-artifact?path=run.json&run_uuid={run}"

        def answer():
            with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5) as page:
                return page.read()

        assert b'"format"' in until(answer, 60)
    finally:
        server.terminate()
        said = server.communicate(timeout=60)[0]
    assert "the project was in" in said


@pytest.mark.slow
def test_a_project_of_the_version_before_that_was_moved_sends_its_runs_to_its_own_store(tmp_path):
    project = Project(tmp_path / "project")
    shutil.copytree(Path(__file__).parent / "data" / "project-0.1.0", project.root)
    assert "failed" not in project.daypoint("sync", "--all").stdout
    assert len(rows(project, "SELECT 1 FROM runs")) == 4  # of a run, a sweep and its two jobs that began
    project.daypoint("sync", "--rebuild")
    assert len(rows(project, "SELECT 1 FROM runs")) == 4
    assert_whole(project, Path("/srv/vision"))


def test_a_store_that_cannot_be_changed_is_as_it_was(root, monkeypatch):
    from daypoint.base.errors import StoreError
    from daypoint.tracking import store

    path = root / "mlruns" / "mlflow.db"
    with sqlite3.connect(path) as database:
        database.execute("UPDATE experiments SET artifact_location = '/srv/old/mlruns/artifacts/0'")
    before = path.read_bytes()

    def fail(*_):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(store, "_replace_directories", fail)
    with pytest.raises(StoreError, match=r"moved from /srv/old.*disk I/O error.*daypoint sync --rebuild"):
        store.repair_moved(f"sqlite:///{path}")
    assert path.read_bytes() == before
    assert path.with_name("mlflow.db.before-move").exists()
    monkeypatch.undo()
    assert "/srv/old" in store.repair_moved(f"sqlite:///{path}")
    assert store.repair_moved(f"sqlite:///{path}") is None
    assert not path.with_name("mlflow.db.before-move").exists()


def test_a_store_whose_artifacts_are_elsewhere_on_purpose_is_left_alone(root, tmp_path):
    from daypoint.tracking import store

    path, elsewhere = root / "mlruns" / "mlflow.db", tmp_path / "data" / "mlruns" / "artifacts" / "0"
    elsewhere.mkdir(parents=True)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE experiments SET artifact_location = ?", [str(elsewhere)])
    assert store.repair_moved(f"sqlite:///{path}") is None


def test_a_server_is_never_touched():
    from daypoint.tracking import store

    assert store.repair_moved("postgresql://127.0.0.1:1/mlflow") is None
    assert store.repair_moved("http://127.0.0.1:1") is None
