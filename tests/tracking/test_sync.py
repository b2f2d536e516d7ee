import shutil
import subprocess
import sys
import time

import pytest
from written_runs import WrittenRun, stored_points, unused_port

from daypoint.record import identity
from daypoint.tracking import store
from daypoint.tracking.shipment import Shipment
from daypoint.tracking.sync import sync

# MLflow's use of SQLAlchemy, not ours.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    pytest.mark.usefixtures("warm_python"),
]


def ended(root, points=3, **record):
    run = WrittenRun(root, **record)
    for step in range(points):
        run.log(loss=float(step))
    run.end()
    return run


def arrived(run, uri=None):
    return stored_points(uri or run.uri, run.record["uid"]) == sorted(run.points, key=lambda point: point[2:])


def test_what_is_missing_is_sent_and_reported(root):
    runs = [ended(root), ended(root)]
    report = sync([run.directory for run in runs])
    assert report.ok
    assert all(arrived(run) for run in runs)
    assert report.lines[0].startswith(
        f"{runs[0].directory}  sent: FINISHED, 3 points sent now, http://127.0.0.1:5000/#/experiments/1/runs/"
    )
    assert report.lines[-1] == "2 runs: 2 sent; 6 points sent now"


def test_a_second_time_there_is_nothing_to_send(root):
    run = ended(root)
    sync([run.directory])
    report = sync([run.directory])
    assert report.lines[-1] == "1 runs: 1 sent; 0 points sent now"
    assert arrived(run)


def test_a_run_whose_trainer_was_killed_gets_its_status(root):
    run = WrittenRun(root)
    run.log(loss=1.0)
    run.die()
    assert "KILLED" in sync([run.directory]).lines[0]
    assert identity.read_run(run.directory)["status"] == "KILLED"


def test_a_run_that_goes_on_without_a_courier_is_sent_as_far_as_it_is(root):
    run = WrittenRun(root)
    run.log(loss=1.0)
    report = sync([run.directory])
    assert (report.runs[0].outcome, report.ok) == ("live", True)
    assert arrived(run)
    run.die()


def test_a_run_that_its_courier_is_sending_is_left_alone(root):
    run = WrittenRun(root)
    with Shipment.begin(run.directory, store.connect(run.uri), run.uri, None):
        started = time.monotonic()
        assert sync([run.directory]).runs[0].outcome == "live"
        assert time.monotonic() - started < 5.0
    run.die()


def test_a_run_that_another_process_finishes_is_waited_for_with_a_bound(root):
    run = ended(root)
    with Shipment.begin(run.directory, store.connect(run.uri), run.uri, None):
        report = sync([run.directory], wait_seconds=0.5)
    assert (report.runs[0].outcome, report.ok) == ("busy", False)


def test_a_run_made_without_tracking_is_sent_when_a_store_is_given(root):
    run = ended(root, tracking_uri=None, artifact_root=None)
    assert sync([run.directory]).runs[0].outcome == "off"
    assert sync([run.directory], uri=run.uri).runs[0].outcome == "sent"
    assert arrived(run)


def test_one_bad_run_does_not_keep_the_others(root):
    bad, good = ended(root), ended(root)
    bad.files.run.write_text("{")
    report = sync([bad.directory, root / "none", good.directory])
    assert [run.outcome for run in report.runs] == ["failed", "failed", "sent"]
    assert not report.ok
    assert "run.json" in report.lines[0]


def test_a_run_that_was_deleted_in_mlflow_is_left_deleted(root):
    run = ended(root)
    sync([run.directory])
    client = store.connect(run.uri)
    (sent,) = client.search_runs(["1"])
    client.delete_run(sent.info.run_id)
    report = sync([run.directory])
    assert (report.runs[0].outcome, report.ok) == ("deleted", True)


def test_a_dead_server_is_tried_once(root):
    uri = f"http://127.0.0.1:{unused_port()}"
    runs = [ended(root, tracking_uri=uri, artifact_root=None) for _ in range(5)]
    started = time.monotonic()
    report = sync([run.directory for run in runs])
    assert time.monotonic() - started < 10.0
    assert [run.outcome for run in report.runs] == ["failed"] * 5
    assert len({run.text for run in report.runs}) == 1


@pytest.mark.slow
def test_a_lost_store_is_made_anew_from_the_runs(root):
    runs = [ended(root), ended(root, points=500)]
    sync([run.directory for run in runs])
    shutil.rmtree(root / "mlruns")
    # MLflow keeps the file that is gone open in this process; people use another one.
    script = (
        "import sys; from pathlib import Path; from daypoint.tracking.sync import sync; "
        "sys.exit(not sync(map(Path, sys.argv[1:])).ok)"
    )
    subprocess.run([sys.executable, "-c", script, *(str(run.directory) for run in runs)], check=True)
    assert all(arrived(run) for run in runs)


def test_a_moved_project_takes_its_store_along(root, tmp_path):
    run = ended(root)
    root.rename(tmp_path / "moved")
    directory = tmp_path / "moved" / "outputs" / run.directory.relative_to(root / "outputs")
    report = sync([directory])
    assert report.ok, report.lines
    assert arrived(run, f"sqlite:///{tmp_path}/moved/mlruns/mlflow.db")
    assert not root.exists()


def test_a_moved_project_never_writes_where_it_was(root, tmp_path):
    sync([ended(root).directory])
    run = ended(root)
    root.rename(tmp_path / "moved")
    directory = tmp_path / "moved" / "outputs" / run.directory.relative_to(root / "outputs")
    assert sync([directory]).ok
    assert arrived(run, f"sqlite:///{tmp_path}/moved/mlruns/mlflow.db")
    assert not root.exists()


@pytest.mark.slow
def test_several_terminals_at_once_send_everything_once(root):
    runs = [ended(root, points=3000) for _ in range(6)]
    script = (
        "import sys; from pathlib import Path; from daypoint.tracking.sync import sync; "
        "report = sync(map(Path, sys.argv[1:])); print(report.lines); sys.exit(not report.ok)"
    )
    command = [sys.executable, "-c", script, *(str(run.directory) for run in runs)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert all(arrived(run) for run in runs)
    assert len(store.connect(runs[0].uri).search_runs(["1"])) == 6


def test_a_damaged_journal_is_mentioned(root):
    run = WrittenRun(root)
    run.log(loss=1.0)
    run.log(loss=2.0)
    run.end()
    content = bytearray(run.files.journal.read_bytes())
    content[content.index(b'"loss"') + 2] ^= 1
    run.files.journal.write_bytes(content)
    (sent,) = sync([run.directory]).runs
    assert sent.outcome == "sent"
    assert "the journal is damaged (bytes " in sent.text
