import fcntl
import json
import os
import time
from datetime import datetime

import pytest
from written_runs import WrittenRun

from daypoint.record import catalog, ending, identity
from daypoint.record.ending import Ending, ending_of, is_abandoned, last_event


@pytest.fixture
def run(tmp_path):
    written = WrittenRun(tmp_path)
    written.log(loss=1.0)
    yield written
    written.journal.close()


def said(run):
    """What run.json says: the status of the run, and of its last attempt."""
    record = identity.read_run(run.directory)
    return record["status"], record["attempts"][-1]["status"]


def test_a_run_that_is_being_written_goes_on(run):
    assert ending_of(run.files) is None
    assert not is_abandoned(run.directory)
    assert said(run) == ("RUNNING", "RUNNING")


def test_an_orderly_end_is_taken_from_its_event(run):
    run.end("FAILED", "ValueError: no")
    assert ending_of(run.files) == Ending("FAILED", run.time_ms, "ValueError: no")


def test_a_killed_run_ends_with_its_last_event(run):
    run.die()
    assert is_abandoned(run.directory)
    assert ending_of(run.files) == Ending("KILLED", run.time_ms)
    assert not is_abandoned(run.directory)


def test_the_record_of_a_killed_run_is_corrected(run):
    run.die()
    ending_of(run.files)
    assert said(run) == ("KILLED", "KILLED")
    attempt = identity.read_run(run.directory)["attempts"][-1]
    assert datetime.fromisoformat(attempt["ended"]).timestamp() * 1000 == pytest.approx(run.time_ms)
    assert attempt["seconds"] == pytest.approx(0.007, abs=1e-3)


def test_a_run_killed_between_its_last_event_and_its_record_ended_as_it_said(run):
    run._event("end", attempt=1, status="FINISHED", step=1, error=None)
    run.die()
    assert ending_of(run.files).status == "FINISHED"
    assert said(run) == ("FINISHED", "FINISHED")


def test_a_run_whose_last_event_could_not_be_written_ended_as_its_record_says(run):
    run.record["status"] = run.record["attempts"][-1]["status"] = "FAILED"
    run.record["attempts"][-1]["ended"] = "2026-03-28T14:16:00+00:00"
    run.record["attempts"][-1]["error"] = {"type": "JournalError", "message": "disk full", "traceback": ""}
    run.write_record()
    run.die()
    assert ending_of(run.files) == Ending("FAILED", 1774707360000, "JournalError: disk full")


def test_a_run_without_a_journal_was_killed_at_its_start(run):
    run.die()
    run.files.journal.unlink()
    assert ending_of(run.files) == Ending("KILLED", run.record["started_ms"])


def test_a_child_that_holds_the_lock_of_a_dead_trainer_does_not_count(run):
    assert ending_of(run.files, dead_pid=os.getpid()) == Ending("KILLED", run.time_ms)
    assert said(run) == ("KILLED", "KILLED")


def test_another_dead_process_does_not_end_a_run(run):
    assert ending_of(run.files, dead_pid=os.getpid() + 1) is None


def test_a_child_that_holds_the_lock_does_not_hide_an_orderly_end(run):
    lock = os.dup(run.journal._descriptor)
    run.end()
    assert ending_of(run.files) == Ending("FINISHED", run.time_ms)
    os.close(lock)


def test_a_new_attempt_that_begins_meanwhile_keeps_its_record(run):
    run.die()
    with open(run.files.journal, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not ending._close_record(run.files, Ending("KILLED", 0), None)
    assert said(run) == ("RUNNING", "RUNNING")


def test_a_resumed_run_ends_with_its_last_attempt(run):
    run.die()
    ending_of(run.files)
    run.resume(0)
    assert ending_of(run.files) is None
    run.log(loss=1.0)
    run.end("FINISHED")
    assert ending_of(run.files) == Ending("FINISHED", run.time_ms)


def test_a_run_of_another_machine_must_be_silent_before_it_counts_as_dead(run):
    run.record["attempts"][-1]["host"] = "elsewhere"
    run.write_record()
    run.die()
    assert not is_abandoned(run.directory)
    past = time.time() - ending.SILENCE_SECONDS - 1
    os.utime(run.files.journal, (past, past))
    assert is_abandoned(run.directory)


def test_the_last_whole_event_is_found_before_damage(run):
    run.log(loss=2.0)
    with open(run.files.journal, "ab") as file:
        file.write(b"x" * 200_000 + b"\n" + b"y" * 200_000)
    assert last_event(run.files.journal)["metrics"] == {"loss": 2.0}


def test_an_event_that_says_nothing_of_the_training_can_be_passed_over(run):
    run.log(loss=2.0)
    run._event("checkpoint", step=1, epoch=0, path="checkpoints/step000001", metrics={"loss": 1.0})
    assert last_event(run.files.journal)["event"] == "checkpoint"
    assert last_event(run.files.journal, other_than="checkpoint")["metrics"] == {"loss": 2.0}


def test_a_checkpoint_that_was_written_late_does_not_turn_the_steps_back(run, tmp_path):
    for _ in range(4):
        run.log(loss=2.0)
    run._event("checkpoint", step=1, epoch=0, path="checkpoints/step000001", metrics={"loss": 1.0})
    run.die()
    stored = catalog.read(run.directory, tmp_path)
    assert (stored.steps, stored.metrics) == (5, {"loss": 2.0})


def test_a_long_last_event_is_read_whole(run):
    run._event("end", attempt=1, status="FAILED", step=1, error="e" * 300_000)
    assert len(last_event(run.files.journal)["error"]) == 300_000


def test_nothing_whole_is_no_event(tmp_path):
    (tmp_path / "journal.jsonl").write_text(json.dumps({"event": "end"}) + "\n")
    assert last_event(tmp_path / "journal.jsonl") is None
