"""What is packaged is in MLflow once, under the right names, and again in a store made anew."""

import contextlib
import shutil
import sqlite3
from datetime import timedelta
from pathlib import Path

import mlflow
import numpy as np
import pytest
import saved_models
import torch
from mlflow.models import Model
from saved_models import save, zoo

import daypoint
from daypoint.again.verify import verify_run
from daypoint.base import day, files
from daypoint.base.errors import AddressError
from daypoint.models import load, package
from daypoint.models.publish import promote, publish
from daypoint.record import catalog, manifest, pins
from daypoint.tracking import registry, store
from daypoint.tracking.sync import sync

# MLflow's use of SQLAlchemy, and what torch.export says, are not ours.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture
def root(tmp_path, tables, monkeypatch):
    """A project to stand in, with an empty store."""
    root = tmp_path / "project"
    (root / "mlruns").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    (root / "mlruns" / "mlflow.db").write_bytes(tables)
    monkeypatch.chdir(root)
    return root


@pytest.fixture(scope="module")
def data():
    return saved_models.digits()


def uri(root):
    return f"sqlite:///{root}/mlruns/mlflow.db"


def client(root):
    return store.connect(uri(root))


def saved(root, data, value=0.9, **more):
    return save(root, zoo("Linear", data), data=data, value=value, **more)


def published(root, run):
    (found,) = publish(str(run.directory), root / "outputs", uri=uri(root)).published
    return found


def model_id(root, version):
    (output,) = client(root).get_run(version.run_id).outputs.model_outputs
    return output.model_id


def rows(root, statement):
    with contextlib.closing(sqlite3.connect(root / "mlruns" / "mlflow.db")) as database:
        return database.execute(statement).fetchall()


def test_a_packaged_model_is_a_version_with_tags_and_the_alias_of_its_day(root, data):
    run = saved(root, data)
    found = published(root, run)
    assert found.registered == registry.Registered("digits", "1", run.day)
    version = client(root).get_model_version_by_alias("digits", run.day)
    assert version.tags == {
        "date": run.day,
        "daypoint.run": run.address,
        "daypoint.uid": run.uid,
        "daypoint.step": "1",
        "daypoint.card_sha256": found.facts["card_sha256"],
        "daypoint.metric": "val/accuracy",
        "daypoint.value": "0.9",
        "daypoint.format": "pt2",
    }
    assert f"mlflow models serve -m models:/digits@{run.day}" in version.description


def test_the_run_and_the_model_know_each_other(root, data):
    run = saved(root, data)
    published(root, run)
    mlflow = client(root)
    version = mlflow.get_model_version("digits", "1")
    stored = mlflow.get_run(version.run_id)
    assert stored.data.tags["daypoint.uid"] == run.uid
    (output,) = stored.outputs.model_outputs
    logged = mlflow.get_logged_model(output.model_id)
    assert (output.step, logged.source_run_id) == (1, version.run_id)
    assert version.source == logged.artifact_location
    assert logged.tags["mlflow.modelVersions"] == '[{"name": "digits", "version": "1"}]'


def test_the_copy_says_which_model_of_which_run_it_is_and_is_whole(root, data):
    published(root, saved(root, data))
    version = client(root).get_model_version("digits", "1")
    described = Model.load(version.source)
    assert (described.run_id, described.model_id) == (version.run_id, model_id(root, version))
    assert manifest.problems(Path(version.source)) == []


def test_publishing_twice_makes_nothing_twice(root, data):
    run = saved(root, data)
    published(root, run)
    again = published(root, run)
    assert sync([run.directory], uri=uri(root)).runs[0].model == again.registered
    assert again.registered.version == "1"
    assert rows(root, "SELECT COUNT(*) FROM model_versions") == [(1,)]
    assert rows(root, "SELECT COUNT(*) FROM logged_models") == [(1,)]
    assert rows(root, "SELECT COUNT(*) FROM inputs WHERE source_type = 'RUN_OUTPUT'") == [(1,)]


def test_a_delivery_that_was_cut_off_is_completed_and_not_repeated(root, data):
    run = saved(root, data)
    published(root, run)
    version = client(root).get_model_version("digits", "1")
    shutil.rmtree(version.source)
    client(root).finalize_logged_model(model_id(root, version), "FAILED")
    client(root).delete_registered_model("digits")
    assert published(root, run).registered.uri == f"models:/digits@{run.day}"
    again = client(root).get_model_version("digits", "1")
    assert again.source == version.source
    assert manifest.problems(Path(again.source)) == []


def test_another_run_of_the_day_gets_a_version_but_not_the_alias(root, data):
    best, other = saved(root, data, 0.9), saved(root, data, 0.5)
    published(root, best)
    found = published(root, other)
    assert found.registered.uri == "models:/digits/2"
    assert found.alias_holder == f"{best.address}, the day's model"
    assert f"daypoint promote {other.address}" in "\n".join(found.lines)
    assert client(root).get_model_version_by_alias("digits", best.day).version == 1


def test_a_worse_run_packaged_first_does_not_get_the_alias(root, data):
    best, other = saved(root, data, 0.9), saved(root, data, 0.5)
    found = published(root, other)
    assert found.registered.alias is None
    assert found.alias_holder == f"nobody; the day's model is {best.address}, not packaged yet"


def test_a_better_run_takes_the_alias_over(root, data):
    published(root, saved(root, data, 0.5))
    best = published(root, saved(root, data, 0.9))
    assert best.registered.uri == f"models:/digits@{best.facts['day']}"
    assert client(root).get_model_version_by_alias("digits", best.facts["day"]).version == 2


def test_a_promoted_run_has_the_alias_and_is_the_days_model(root, data):
    published(root, saved(root, data, 0.9))
    other = saved(root, data, 0.5)
    found = promote(other.address, root / "outputs", uri=uri(root))
    assert found.registered.uri == f"models:/digits@{other.day}"
    assert client(root).get_model_version_by_alias("digits", other.day).tags["daypoint.uid"] == other.uid
    assert daypoint.load(other.day).card["uid"] == other.uid
    published(root, saved(root, data, 0.99))
    assert client(root).get_model_version_by_alias("digits", other.day).tags["daypoint.uid"] == other.uid


def test_promoting_keeps_the_pins_of_other_experiments(root, data):
    one, two = saved(root, data, experiment="one"), saved(root, data, experiment="two")
    promote(one.address, root / "outputs", uri=uri(root))
    promote(two.address, root / "outputs", uri=uri(root))
    found = pins.read_pins(root / "outputs", one.day)
    assert found == {
        "one": {"uid": one.uid, "checkpoint": "step000001"},
        "two": {"uid": two.uid, "checkpoint": "step000001"},
    }


def test_a_day_of_two_experiments_has_two_models(root, data):
    one, two = saved(root, data, experiment="one"), saved(root, data, experiment="two")
    found = publish(one.day, root / "outputs", uri=uri(root)).published
    assert [each.registered.uri for each in found] == [f"models:/one@{one.day}", f"models:/two@{two.day}"]


def test_a_day_without_runs_is_a_clear_error(root):
    with pytest.raises(AddressError, match="20200101"):
        publish("20200101", root / "outputs")


def test_without_tracking_the_package_is_made_and_its_path_served(root, data):
    run = saved(root, data)
    (found,) = publish(str(run.directory), root / "outputs").published
    assert found.registered is None
    assert "tracking.enabled=false" in found.complaint
    assert f"mlflow models serve -m {run.directory}/mlflow_model --env-manager local" in "\n".join(
        found.lines
    )


def test_a_changed_package_is_not_sent(root, data):
    run = saved(root, data)
    package.package(load.choose(str(run.directory), root / "outputs"), root=root)
    with open(run.directory / "mlflow_model" / "data" / "model.pt2", "ab") as file:
        file.write(b" ")
    (sent,) = sync([run.directory], uri=uri(root)).runs
    assert sent.outcome == "failed"
    assert "its model was not sent: the packaged model was changed" in sent.text
    assert rows(root, "SELECT COUNT(*) FROM logged_models") == [(0,)]


def test_verify_names_a_changed_package(root, data):
    run = saved(root, data)
    package.package(load.choose(str(run.directory), root / "outputs"), root=root)
    stored = catalog.read(run.directory, root / "outputs")
    assert verify_run(stored) == []
    (run.directory / "mlflow_model" / "MLmodel").write_text("flavors: {}")
    assert verify_run(stored) == [
        f"{run.directory}/mlflow_model/MLmodel: the content has changed since it was written"
    ]


def test_a_store_made_anew_has_the_same_models_versions_and_aliases(root, data, tables):
    runs = [saved(root, data, value) for value in (0.5, 0.9, 0.7)]
    for run in (runs[0], runs[1], runs[2]):
        published(root, run)
    promote(runs[2].address, root / "outputs", uri=uri(root))

    def said():
        versions = client(root).search_model_versions("name = 'digits'")
        found = client(root).get_registered_model("digits")
        return {v.version: (v.tags, v.description) for v in versions}, found.aliases

    before = said()
    (root / "mlruns" / "mlflow.db").write_bytes(tables)
    shutil.rmtree(root / "mlruns" / "artifacts")
    assert sync([run.directory for run in runs], uri=uri(root)).ok
    assert said() == before
    assert before[1] == {runs[0].day: 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    "experiment", ["a/b", "a:b", "my data", "50% off?", "мой/экс", "..", "@#", "it's", "x" * 400]
)
def test_every_experiment_name_becomes_a_model_that_its_alias_finds(root, data, experiment):
    run = saved(root, data, experiment=experiment)
    found = published(root, run).registered
    mlflow.set_tracking_uri(uri(root))
    try:
        loaded = mlflow.pyfunc.load_model(found.uri)
        assert loaded.predict(np.zeros((2, 1, 8, 8), np.float32)).shape == (2, 10)
    finally:
        mlflow.set_tracking_uri(None)


def test_two_experiments_never_share_a_model():
    names = ["a/b", "a:b", "a-b", "a@b", "", " ", "model", "A-b"]
    assert len({registry.model_name(name) for name in names}) == len(names)


def test_two_days_models_load_side_by_side_and_stay_distinct(root, data, monkeypatch):
    real, loaded, expected = day.now, [], []
    x = torch.randn(4, 1, 8, 8)
    for days in (1, 0):
        monkeypatch.setattr(day, "now", lambda zone="local", days=days: real(zone) - timedelta(days=days))
        torch.manual_seed(days)
        run = saved(root, data)
        published(root, run)
        with torch.no_grad():
            expected.append(daypoint.load(run.day)(x).numpy())
        loaded.append((run.day, f"models:/digits@{run.day}"))
    mlflow.set_tracking_uri(uri(root))
    try:
        models = [mlflow.pyfunc.load_model(address) for _, address in loaded]
        for each, wanted in zip(models, expected, strict=True):
            np.testing.assert_allclose(each.predict(x.numpy()), wanted, atol=1e-6)
    finally:
        mlflow.set_tracking_uri(None)
    assert loaded[0][0] < loaded[1][0]
    assert not np.allclose(expected[0], expected[1])


def test_a_damaged_pins_file_is_named(root, data):
    run = saved(root, data)
    day_directory = root / "outputs" / run.day
    (day_directory / "promoted.json").write_text("[]")
    with pytest.raises(daypoint.CheckpointError, match=r"promoted\.json: expected the pins of a day"):
        promote(run.address, root / "outputs", uri=uri(root))
    assert files.loads((day_directory / "promoted.json").read_bytes()) == []
