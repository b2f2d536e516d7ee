import math
import os
import random

import pytest
from shipped import begin, ship
from written_runs import WrittenRun, stored_points

from daypoint.base import keys
from daypoint.base.errors import StoreError
from daypoint.record import identity
from daypoint.tracking import store
from daypoint.tracking.shipment import BATCH_POINTS, DeletedRun
from daypoint.tracking.tags import Tags

# MLflow's use of SQLAlchemy, not ours.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


@pytest.fixture
def run(root):
    written = WrittenRun(root)
    yield written
    written.journal.close()


def expected(run):
    return sorted(run.points, key=lambda point: (point[0], point[3], point[2]))


# ---------------------------------------------------------------- points


def test_every_point_arrives_with_its_exact_value_step_and_time(run):
    numbers = random.Random(0)
    for _ in range(700):
        run.log(loss=numbers.gauss(0, 1e-12), lr=numbers.random() * 1e300, acc=5e-324)
    run.end()
    ship(run)
    assert len(run.points) > BATCH_POINTS
    assert stored_points(run.uri, run.record["uid"]) == expected(run)


def test_sending_everything_twice_stores_it_once(run):
    for step in range(400):
        run.log(loss=step / 7, nan=math.nan, same=1.0)
    run.end()
    sent = ship(run)
    before = stored_points(run.uri, run.record["uid"])
    store.connect(run.uri).set_tag(
        sent.info.run_id, "daypoint.shipped_bytes", "0"
    )  # died before it could be marked
    ship(run)
    assert stored_points(run.uri, run.record["uid"]) == before
    assert len(before) == 1200


def test_sending_again_what_is_there_sends_nothing(run):
    run.log(loss=1.0)
    run.end()
    ship(run)
    with begin(run) as shipment:
        assert not shipment.advance()
        assert shipment.points == 0


def test_a_growing_journal_is_sent_as_it_grows(run):
    with begin(run) as shipment:
        for step in range(3):
            run.log(loss=float(step))
            assert shipment.advance()
            assert stored_points(run.uri, run.record["uid"]) == expected(run)
            assert not shipment.finish()


def test_the_latest_value_is_that_of_the_last_step(run):
    for step in range(5):
        run.log(loss=float(step))
    run.end()
    assert ship(run).data.metrics["loss"] == 4.0


def test_a_boolean_is_one_or_zero(run):
    run.log(ok=True, bad=False)
    run.end()
    assert ship(run).data.metrics == {"ok": 1.0, "bad": 0.0}


def test_what_is_not_finite_is_nan_and_said_in_a_tag(run):
    run.log(loss=1.0, other=1.0)
    run.log(loss=math.inf, other=1.0)
    run.log(loss=math.nan, other=-math.inf)
    run.end()
    sent = ship(run)
    assert sent.data.tags["daypoint.nonfinite"] == "loss: inf first at step 1; other: -inf first at step 2"
    assert [value for key, value, _, _ in stored_points(run.uri, run.record["uid"]) if key == "loss"] == [
        1.0,
        None,
        None,
    ]


def test_an_integer_that_was_rounded_is_said_in_a_tag(run):
    run.log(count=2**53 + 1)
    run.end()
    assert ship(run).data.tags["daypoint.rounded"] == "count: first at step 0"


def test_any_name_arrives_and_can_be_read_back(run):
    names = {"acc@1", "mAP[0.5]", "/x", "a//b", "..", "Loss", "loss", "損失 %", "a\n", "\0"}
    run.log(**dict.fromkeys(names, 1.0))
    run.end()
    assert {keys.name_of(key) for key in ship(run).data.metrics} == names


# ---------------------------------------------------------------- params, tags, files


def test_every_leaf_of_the_config_is_a_param(run):
    run.end()
    assert ship(run).data.params == {
        "optimizer.lr": "0.01",
        "optimizer.betas": "[0.9, 0.95]",
        "model.dropout": "null",
    }


def test_hundreds_of_params_arrive(root):
    config = {f"group{i}": {f"leaf{j}": i * j for j in range(25)} for i in range(30)}
    run = WrittenRun(root, config=config)
    run.end()
    assert ship(run).data.params == keys.flatten(config)


def test_params_that_an_earlier_sending_did_not_get_through_are_added(run):
    begin(run).close()
    run.record["config"]["late"] = {"a": 1}
    run.end()
    assert ship(run).data.params["late.a"] == "1"


def test_a_param_that_changed_is_said_and_stops_nothing(run):
    begin(run).close()
    run.record["config"]["optimizer"]["lr"] = 0.5
    run.log(loss=1.0)
    run.end()
    sent = ship(run)
    assert sent.data.params["optimizer.lr"] == "0.01"
    assert sent.data.tags["daypoint.params_changed"] == "optimizer.lr: 0.5"
    assert sent.data.metrics == {"loss": 1.0}


def test_a_resumed_run_has_the_params_of_its_first_attempt_and_says_what_changed(run):
    run.log(loss=1.0)
    run.die()
    ship(run)
    run.record["first_config"] = run.record["config"]
    run.record["config"] = {**run.record["config"], "optimizer": {"lr": 0.5, "betas": [0.9, 0.95]}}
    run.resume(1)
    run.record["attempts"][-1]["changes"] = {"optimizer.lr": [0.01, 0.5]}
    run.end()
    sent = ship(run)
    assert sent.data.params["optimizer.lr"] == "0.01"
    assert sent.data.tags["daypoint.params_changed"] == "optimizer.lr in attempt 2: 0.5"


def test_a_param_too_long_for_mlflow_is_cut_and_said(root):
    run = WrittenRun(root, config={"prompt": "x" * 7000, "odd": "a\0b"})
    run.end()
    sent = ship(run)
    assert sent.data.params == {"prompt": "x" * 5999 + "…", "odd": "a\\x00b"}
    assert sent.data.tags["daypoint.truncated"].count("param is not whole here") == 2


def test_the_run_says_who_it_is(run):
    run.end()
    sent = ship(run)
    assert sent.info.run_name == "20260328-141502 mlp-adamw"
    assert (
        sent.data.tags.items()
        >= {
            "date": "20260328",
            "device": "cpu",
            "host": run.record["host"],
            "git.commit": "c" * 40,
            "git.dirty": "false",
            "mlflow.source.git.commit": "c" * 40,
            "mlflow.source.name": "train.py",
            "mlflow.user": "ada",
            "daypoint.uid": run.record["uid"],
            "daypoint.run": "20260328/141502-123456",
            "daypoint.directory": str(run.directory),
            "daypoint.status": "FINISHED",
        }.items()
    )
    assert "daypoint show 20260328/141502-123456" in sent.data.tags["mlflow.note.content"]


def test_the_note_says_what_the_run_is_and_how_it_went(root):
    run = WrittenRun(
        root, choices={"model": "mlp", "optimizer": "adamw"}, monitor={"metric": "loss", "mode": "min"}
    )
    run.log(loss=0.25)
    run.end("FAILED")
    note = ship(run).data.tags["mlflow.note.content"]
    assert note.startswith("**20260328/141502-123456** FAILED · ")
    for line in (
        "| model | mlp |",
        "| optimizer | adamw, lr 0.01 |",
        "| rows | 1,797, fingerprint ffffffffffff |",
    ):
        assert line in note
    assert "    python train.py resume=20260328/141502-123456" in note


def test_text_in_the_note_cannot_leave_its_cell(root):
    run = WrittenRun(root, choices={"model": "a|b\n<script>"})
    run.end()
    assert "| model | a\\|b &lt;script> |" in ship(run).data.tags["mlflow.note.content"]


def test_tags_of_the_users_own_are_there(root):
    run = WrittenRun(root, tags={"team": "vision", "odd@name": "x" * 9000})
    run.end()
    tags = ship(run).data.tags
    assert tags["team"] == "vision"
    assert len(tags["odd:40:name"]) == 8000


def test_a_note_that_was_edited_is_left_alone(run):
    with begin(run) as shipment:
        store.connect(run.uri).set_tag(shipment.run_id, "mlflow.note.content", "the good one")
    run.end()
    assert ship(run).data.tags["mlflow.note.content"] == "the good one"


def test_a_job_of_a_sweep_says_so(root):
    run = WrittenRun(root, sweep={"directory": "/x/outputs/20260328/sweep-150233-654321", "job": 3})
    run.end()
    assert ship(run).data.tags["daypoint.sweep"] == "sweep-150233-654321/3"


def test_the_dataset_is_an_input(run):
    run.end()
    ship(run)
    (given,) = ship(run).inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("digits", "f" * 32)


def test_log_config_and_record_are_artifacts_as_they_are_at_the_end(run):
    run.log(loss=1.0)
    run.end()
    sent = ship(run)
    for path in (run.files.config, run.files.train_log, run.files.run):
        local = store.connect(run.uri).download_artifacts(sent.info.run_id, path.name)
        with open(local, "rb") as file:
            assert file.read() == path.read_bytes()


def test_the_config_of_every_attempt_is_an_artifact_and_its_uncommitted_code_is_not(run):
    again = run.files.config_of(2)
    run.files.uncommitted_diff(1).write_text("+print(2)")
    again.write_text("optimizer:\n  lr: 0.5\n")
    run.end()
    sent = ship(run)
    artifacts = {file.path for file in store.connect(run.uri).list_artifacts(sent.info.run_id)}
    assert artifacts == {run.files.config.name, again.name, run.files.train_log.name, "run.json"}


def test_artifacts_lie_beside_the_store_whatever_the_working_directory(run, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run.end()
    assert ship(run).info.artifact_uri.startswith(f"{tmp_path}/project/mlruns/artifacts/digits/")
    assert os.listdir(".") == []


@pytest.mark.parametrize("experiment", ["20240131", "мой/экс", "x" * 500, "../../up"])
def test_an_experiment_may_have_any_name(root, experiment):
    run = WrittenRun(root, experiment=experiment)
    run.end()
    sent = ship(run)
    assert store.connect(run.uri).get_experiment(sent.info.experiment_id).name == experiment
    assert sent.info.artifact_uri.startswith(f"{root}/mlruns/artifacts/")
    assert ".." not in sent.info.artifact_uri


# ---------------------------------------------------------------- status


def test_a_run_that_goes_on_is_running(run):
    run.log(loss=1.0)
    sent = ship(run)
    assert (sent.info.status, sent.data.tags["daypoint.status"]) == ("RUNNING", "RUNNING")


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_a_run_that_ended_has_its_status_and_its_times(run, status):
    run.log(loss=1.0)
    run.end(status)
    sent = ship(run)
    assert (sent.info.status, sent.data.tags["daypoint.status"]) == (status, status)
    assert (sent.info.start_time, sent.info.end_time) == (run.record["started_ms"], run.time_ms)


def test_a_failed_run_says_why(run):
    run.end("FAILED", "ValueError: no")
    assert ship(run).data.tags["daypoint.error"] == "ValueError: no"


def test_a_run_whose_trainer_was_killed_is_killed_here_and_in_its_record(run):
    run.log(loss=1.0)
    run.die()
    sent = ship(run)
    assert sent.info.status == "KILLED"
    assert sent.info.end_time == run.time_ms
    assert identity.read_run(run.directory)["status"] == "KILLED"


def test_a_resumed_run_goes_on_as_the_same_run(run):
    for step in range(10):
        run.log(loss=float(step))
    run.die()
    first = ship(run)
    run.resume(5)
    again = ship(run)
    assert (again.info.run_id, again.info.status) == (first.info.run_id, "RUNNING")
    for step in range(5, 12):
        run.log(loss=100.0 + step)
    run.end()
    last = ship(run)
    assert (last.info.run_id, last.info.status) == (first.info.run_id, "FINISHED")
    assert last.data.tags["daypoint.resumed"] == "attempt 2: from step 5"
    steps = [step for key, _, _, step in stored_points(run.uri, run.record["uid"]) if key == "loss"]
    assert steps == list(range(12))


def test_a_run_killed_twice_has_the_time_of_the_second(run):
    run.die()
    ship(run)
    run.resume(0)
    run.log(loss=1.0)
    run.die()
    sent = ship(run)
    assert (sent.info.status, sent.info.end_time) == ("KILLED", run.time_ms)


# ---------------------------------------------------------------- damage


def test_a_damaged_line_is_named_and_the_rest_arrives(run):
    run.log(loss=1.0)
    start = run.files.journal.stat().st_size
    run.log(loss=2.0)
    end = run.files.journal.stat().st_size
    run.log(loss=3.0)
    run.end()
    content = bytearray(run.files.journal.read_bytes())
    content[start + 30] ^= 1
    run.files.journal.write_bytes(content)
    sent = ship(run)
    assert [value for _, value, _, _ in stored_points(run.uri, run.record["uid"])] == [1.0, 3.0]
    assert sent.data.tags["daypoint.damaged"].startswith(
        f"bytes {start} to {end - 1}: the checksum does not match"
    )


def test_a_torn_last_line_is_named_once_the_run_has_ended(run):
    run.log(loss=1.0)
    with open(run.files.journal, "ab") as file:
        file.write(b'{"event":"bat')
    assert "daypoint.damaged" not in ship(run).data.tags
    run.die()
    assert "the last line was not finished" in ship(run).data.tags["daypoint.damaged"]


# ---------------------------------------------------------------- what others do


def test_a_second_shipment_of_one_run_is_not_to_be_had(run):
    with begin(run):
        assert begin(run) is None
    begin(run).close()


def test_a_deleted_experiment_is_named_with_the_way_to_restore_it(run):
    sent = ship(run)
    store.connect(run.uri).delete_experiment(sent.info.experiment_id)
    with pytest.raises(StoreError, match=r"'digits'.*mlflow experiments restore -x 1"):
        begin(run)


def test_a_run_that_was_deleted_in_mlflow_stays_deleted(run):
    sent = ship(run)
    store.connect(run.uri).delete_run(sent.info.run_id)
    with pytest.raises(DeletedRun, match=f"mlflow runs restore --run-id {sent.info.run_id}"):
        begin(run)


def test_a_failed_beginning_gives_the_lock_up(run):
    sent = ship(run)
    client = store.connect(run.uri)
    client.delete_run(sent.info.run_id)
    with pytest.raises(DeletedRun):
        begin(run)
    client.restore_run(sent.info.run_id)
    begin(run).close()


def test_another_store_gets_the_same_run_from_the_directory_alone(run, tmp_path, tables):
    for step in range(500):
        run.log(loss=math.sin(step), lr=0.1)
        if step % 100 == 99:
            run.log_epoch(accuracy=step / 500)
            run.epoch(loss=[1.0, 2.0], lr=[0.1])
    run.end()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mlflow.db").write_bytes(tables)
    uri = f"sqlite:///{tmp_path}/copy/mlflow.db"
    first, second = ship(run), ship(run, uri)
    assert stored_points(uri, run.record["uid"]) == stored_points(run.uri, run.record["uid"])
    assert second.data.to_dictionary() == first.data.to_dictionary()
    for name in ("status", "start_time", "end_time", "run_name", "user_id"):
        assert getattr(second.info, name) == getattr(first.info, name)


# ---------------------------------------------------------------- tags


def test_a_remark_is_made_once_for_each_subject():
    tags = Tags({"daypoint.nonfinite": "loss: nan first at step 3"})
    tags.remark("daypoint.nonfinite", "loss", "inf first at step 9")
    tags.remark("daypoint.nonfinite", "los", "nan first at step 4")
    assert tags.changed == {"daypoint.nonfinite": "loss: nan first at step 3; los: nan first at step 4"}


def test_remarks_never_outgrow_a_tag():
    tags = Tags({})
    for number in range(2000):
        tags.remark(
            "daypoint.damaged", f"bytes {number} to {number + 1}", "the checksum does not match; changed"
        )
    (text,) = tags.changed.values()
    assert len(text) <= 8000


def test_only_what_changed_is_sent():
    tags = Tags({"a": "1", "b": "2"})
    tags.set("a", "1")
    tags.set("b", "3")
    assert tags.changed == {"b": "3"}
