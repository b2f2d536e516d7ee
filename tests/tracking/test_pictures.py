"""Pictures as artifacts in MLflow: drawn once, drawn again when there is more, and nothing fails for them."""

import time

import pytest
from shipped import ship
from waiting import until
from written_runs import WrittenRun

from daypoint.plots import curves_figure
from daypoint.tracking import pictures, store
from daypoint.tracking.courier import Courier
from daypoint.tracking.sync import sync

# MLflow's use of SQLAlchemy, not ours.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    pytest.mark.usefixtures("warm_python"),
]


@pytest.fixture
def run(root):
    run = WrittenRun(root)
    for step in range(20):
        run.log(loss=1 / (1 + step))
    run.end()
    return run


def draw(run):
    """(run in MLflow after the drawing, what `draw_run` returned)."""
    run_id = ship(run).info.run_id
    client = store.connect(run.uri)
    complaint = pictures.draw_run(client, run_id, run.directory, client.get_run(run_id).data.tags)
    return client.get_run(run_id), complaint


def artifact(run, sent):
    (found,) = artifact_root(run).glob(f"*/{sent.info.run_id}/artifacts/curves.png")
    return found


def artifact_root(run):
    return run.directory.parents[2] / "mlruns" / "artifacts"


def test_the_learning_curves_are_an_artifact(run):
    sent, complaint = draw(run)
    assert complaint is None
    assert artifact(run, sent).read_bytes().startswith(b"\x89PNG")
    assert sent.data.tags[pictures.TAG] == str(run.files.journal.stat().st_size)


def test_a_picture_that_is_there_is_not_drawn_again(run):
    sent, _ = draw(run)
    artifact(run, sent).unlink()
    draw(run)
    assert not list(artifact_root(run).rglob("curves.png"))


def test_a_run_that_went_on_gets_a_new_picture(run):
    sent, _ = draw(run)
    before = artifact(run, sent).read_bytes()
    run.resume(20)
    run.log(loss=5.0)
    run.end()
    sent, _ = draw(run)
    assert artifact(run, sent).read_bytes() != before


def test_a_picture_that_cannot_be_drawn_is_said_in_a_tag_and_not_tried_again(run, monkeypatch):
    monkeypatch.setattr(curves_figure, "draw_curves", lambda *_, **__: 1 / 0)
    sent, complaint = draw(run)
    assert complaint == "curves.png cannot be drawn: ZeroDivisionError: division by zero"
    assert complaint in sent.data.tags[pictures.TAG]
    assert sent.info.status == "FINISHED"
    assert draw(run)[1] is None


def test_an_empty_run_has_a_picture_too(root):
    run = WrittenRun(root)
    run.end()
    sent, complaint = draw(run)
    assert complaint is None
    assert artifact(run, sent).exists()


def test_sync_draws_what_is_missing_and_says_what_cannot_be_drawn(run, monkeypatch):
    ship(run)
    (sent,) = sync([run.directory]).runs
    assert sent.outcome == "sent"
    assert list(artifact_root(run).rglob("curves.png"))
    monkeypatch.setattr(curves_figure, "draw_curves", lambda *_, **__: 1 / 0)
    run.resume(20)
    run.end()
    (sent,) = sync([run.directory]).runs
    assert sent.outcome == "sent"
    assert "curves.png cannot be drawn: ZeroDivisionError" in sent.text


@pytest.mark.slow
def test_a_courier_that_has_nothing_else_to_do_draws_while_its_trainer_lives(run):
    courier = Courier.start()
    try:
        courier.add(run.directory)
        assert courier.close_run(run.directory, 60.0).done
        until(lambda: list(artifact_root(run).rglob("curves.png")))
        assert courier.pid is not None
    finally:
        courier.shutdown(30.0)
    assert not run.files.courier_log.exists()


@pytest.mark.slow
def test_after_a_sweep_its_jobs_and_the_sweep_itself_have_pictures(project):
    project.train("-m", "optimizer.lr=0.1,0.01", "trainer.epochs=1", "model=linear")
    root = project.root / "mlruns" / "artifacts"
    until(lambda: len(list(root.rglob("curves.png"))) == 2 and list(root.rglob("sweep.png")))
    time.sleep(1.0)
    assert not list(project.outputs.rglob("courier.log"))
