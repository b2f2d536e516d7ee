"""The page of one run, and how it is drawn again while the run goes on."""

import io
import json
import re
import threading

import pytest
import torch
from filed_runs import OPTIONAL, epoch, file_run
from rich.console import Console
from written_runs import WrittenRun

import daypoint
from daypoint.base import day
from daypoint.base.tables import as_json_object
from daypoint.cli import watching
from daypoint.reading import showing
from daypoint.record import catalog


@pytest.fixture
def outputs(tmp_path):
    """A run of two epochs with a checkpoint in each; the first is the best."""
    outputs = tmp_path / "outputs"
    cfg = {"lr": 0.1, "tracking": {"enabled": False, "outputs": str(outputs)}}
    model = torch.nn.Linear(2, 1)
    with daypoint.open_run(cfg, quiet=True, monitor="val/accuracy") as run:
        for i in run.epochs(2):
            run.log(loss=0.5)
            run.log_epoch({"val/accuracy": 0.9 - i / 10})
            run.save(model=model)
    return outputs


def read(outputs):
    (directory,) = day.run_directories(outputs)
    return catalog.read(directory, outputs)


def test_the_best_checkpoint_is_shown_with_its_step_value_and_hash(outputs):
    run = read(outputs)
    lines = showing.page(run).splitlines()
    (place,) = (i for i, line in enumerate(lines) if line.startswith("best "))
    line = lines[place]
    assert line.startswith("best        step 1, epoch 1, weights SHA-256 ")
    assert lines[place + 1].split() == ["val/accuracy", "0.9", "loss", "0.5"]
    sha = re.search(r"SHA-256 (\w+)", line)[1]
    assert any(of["sha256"].startswith(sha) for of in showing.best_card(run)["files"].values())


def test_epochs_are_counted_from_1_on_the_page_and_from_0_in_the_data(outputs):
    page = showing.page(read(outputs))
    assert re.findall(r"^ +(\d) +1 +0\.5", page, re.MULTILINE) == ["1", "2"]
    assert [entry["epoch"] for entry in showing.to_dict(read(outputs))["epochs"]] == [0, 1]


def test_checkpoints_and_files_have_their_sizes(outputs):
    run = read(outputs)
    page = showing.page(run)
    assert re.search(r"step000001 +1 +1 +\d+\.\d kB +best", page)
    assert re.search(r"step000002 +2 +2 +\d+\.\d kB +last", page)
    for name in ("run.json", "journal.jsonl", "train_log_"):
        assert re.search(rf"^{name}\S* +\d", page, re.MULTILINE)
    found = {one["name"]: one["bytes"] for one in showing.to_dict(run)["files"]}
    assert found["run.json"] == run.files.run.stat().st_size


def test_the_data_are_strict_json(outputs):
    found = json.loads(as_json_object(showing.to_dict(read(outputs))))
    assert found["status"] == "FINISHED"
    assert found["best"]["step"] == 1
    assert [one["marks"] for one in found["checkpoints"]] == [["best"], ["last"]]


def test_a_checkpoint_that_is_damaged_is_still_listed(outputs):
    run = read(outputs)
    card = next(run.checkpoints[0].glob("model_*.json"))
    card.write_text("{")
    assert "step000001" in showing.page(run)


def test_the_page_says_what_the_run_belongs_to(tmp_path):
    sweep = {"directory": "/x/outputs/20260301/sweep-150233-654321", "job": 3}
    again = {"address": "20260228/100000-000000", "uid": "0" * 16}
    file_run(tmp_path, "20260301-100000", sweep=sweep, reproduces=again, tracking_uri="http://host")
    page = showing.page(read(tmp_path))
    assert "job 3 of 20260301/sweep-150233-654321" in page
    assert "reproduces  20260228/100000-000000" in page
    assert "experiment digits in http://host" in page


def test_a_resumed_run_says_from_which_step(tmp_path):
    run = WrittenRun(tmp_path)
    run.log(loss=1.0)
    run.die()
    run.resume(1)
    run.record["attempts"][-1]["from_step"] = 1
    run.end()
    assert "resumed     attempt 2, from step 1" in showing.page(
        catalog.read(run.directory, tmp_path / "outputs")
    )


def test_a_record_with_nothing_but_what_is_needed_can_be_shown(tmp_path):
    file_run(tmp_path, "20260301-100000", drop=OPTIONAL, epochs=[epoch(0, x=1.0)])
    assert "FINISHED" in showing.page(read(tmp_path))


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (15_300_000, "15.3 MB"), (10**16, "10000.0 TB")],
)
def test_sizes_are_read_by_people(count, text):
    assert showing.size(count) == text


def test_a_live_run_is_drawn_until_it_ends(tmp_path):
    run = WrittenRun(tmp_path)
    run.log(loss=1.0)
    stored = catalog.read(run.directory, tmp_path / "outputs")
    assert stored.is_live
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=150, height=60, legacy_windows=False)
    ending = threading.Timer(0.3, lambda: (run.log(loss=0.25), run.end()))
    ending.start()
    ended = watching.watch(stored, tmp_path / "outputs", console=console, seconds=0.05)
    ending.join()
    assert ended.status == "FINISHED"
    assert "RUNNING (now)" in screen.getvalue()
    assert "step 1, epoch 1  loss 1" in screen.getvalue()


def test_ctrl_c_ends_the_watching_and_not_the_run(tmp_path, monkeypatch):
    run = WrittenRun(tmp_path)
    run.log(loss=1.0)
    stored = catalog.read(run.directory, tmp_path / "outputs")

    def interrupt(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", interrupt)
    console = Console(file=io.StringIO(), force_terminal=True)
    assert watching.watch(stored, tmp_path / "outputs", console=console).is_live
    run.end()


def test_hyperparameters_are_in_alphabetical_order_those_of_sweeps_only_in_a_job(tmp_path):
    config = {"sweep": {"resume": None}, "trainer": {"epochs": 1}, "model": {"width": 8}, "debug": None}

    def shown(hour, **record):
        run = catalog.read(file_run(tmp_path, f"20260301-{hour}0000", config=config, **record), tmp_path)
        lines = showing.page(run).split("hyperparameters\n")[1].splitlines()
        return [line.split()[0] for line in lines]

    assert shown(10) == ["debug", "model.width", "trainer.epochs"]
    job = {"directory": "x/20260301/sweep-1", "job": 0}
    assert shown(11, sweep=job) == ["debug", "model.width", "sweep.resume", "trainer.epochs"]
