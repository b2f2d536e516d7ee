"""Checkpoints on disk: whole or not there, each damage named, the right one found, nothing unpickled."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
import torch
import warm
from crashes import RECORD, examine, make, model_of, put, save
from projects import SUPPORT
from safetensors.torch import load_file

from daypoint.base.day import RunFiles
from daypoint.base.errors import CheckpointError
from daypoint.checkpoints import checkpoint
from daypoint.record import identity, shelf

CRASHES = SUPPORT / "crashes.py"
DAY = RECORD["day"]


@pytest.fixture
def files(tmp_path):
    return make(tmp_path / "run")


def crash(mode, directory, *more):
    """Run the victims; one report each."""
    # Python 3.12 warns of a fork beside threads; the victims only write files.
    quiet = ("-W", "ignore:This process:DeprecationWarning")
    command = [warm.python(), *quiet, str(CRASHES), mode, str(directory), *map(str, more)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


# ---------------------------------------------------------------- what is written


def test_a_checkpoint_has_the_files_of_the_layout_and_nothing_else(files):
    path = save(files, 300)
    assert path == files.checkpoints / "step000300"
    assert sorted(p.name for p in path.iterdir()) == [
        f"model_{DAY}.json",
        f"model_{DAY}.safetensors",
        f"state_{DAY}.safetensors",
        f"state_{DAY}.state.json",
    ]
    assert sorted(p.name for p in files.checkpoints.iterdir()) == ["best.json", "last.json", "step000300"]


def test_the_weights_are_a_plain_safetensors_file_for_everybody(files):
    path = save(files, 3)
    model = model_of(0)
    model.load_state_dict(load_file(path / f"model_{DAY}.safetensors"), strict=True)
    assert (model.weight == 3).all()


def test_the_card_says_what_the_checkpoint_is(files):
    metrics = {"accuracy": 0.5, "loss": math.nan, "seen": 2**60}
    path = put(files, 12, attempt=2, metrics=metrics, parent={"uid": "x", "step": 6})
    card = shelf.read_card(path)
    assert card["uid"] == RECORD["uid"]
    assert (card["attempt"], card["step"], card["epoch"], card["day"]) == (2, 12, 0, DAY)
    assert card["metrics"] == {"accuracy": 0.5, "loss": pytest.approx(math.nan, nan_ok=True), "seen": 2**60}
    assert card["config"] == RECORD["config"]
    assert card["seed"] == 0
    assert card["parent"] == {"uid": "x", "step": 6}
    assert card["device"] == "cpu"
    assert {name: facts["bytes"] for name, facts in card["files"].items()} == {
        p.name: p.stat().st_size for p in path.iterdir() if p.name != f"model_{DAY}.json"
    }


def test_every_json_file_is_strict(files):
    def refuse(token):
        raise AssertionError(token)

    record = {**RECORD, "config": {"clip": math.inf, "nan": math.nan, "big": 2**70}}
    path = put(files, 1, metrics={"accuracy": math.inf}, record=record, extra={"x": math.nan})
    for file in [*path.glob("*.json"), *files.checkpoints.glob("*.json")]:
        json.loads(file.read_bytes(), parse_constant=refuse)
    config = shelf.read_card(path)["config"]
    assert config["clip"] == math.inf
    assert math.isnan(config["nan"])
    assert config["big"] == 2**70


def test_a_tensor_among_the_metrics_is_refused_by_name(files):
    with pytest.raises(
        CheckpointError, match=r"metrics\.grad_norm: expected plain data, found torch\.Tensor"
    ):
        put(files, 1, metrics={"grad_norm": torch.tensor(1.25)})
    assert list(files.checkpoints.iterdir()) == []


def test_the_pointers_name_the_last_and_the_best(files):
    put(files, 1, metrics={"accuracy": 0.9})
    put(files, 2, metrics={"accuracy": 0.5})
    last, best = (json.loads(files.pointer(name).read_bytes()) for name in ("last", "best"))
    assert (last["checkpoint"], last["step"]) == ("step000002", 2)
    assert (best["checkpoint"], best["metric"], best["mode"], best["value"]) == (
        "step000001",
        "accuracy",
        "max",
        0.9,
    )


def test_saving_a_step_again_replaces_it(files):
    save(files, 10)
    put(files, 10, attempt=2, metrics={"accuracy": 0.1})
    assert shelf.read_card(files.checkpoint(10))["attempt"] == 2
    assert shelf.verify(files.checkpoint(10)) == []
    assert len(list(files.checkpoints.glob("*step*"))) == 1


def test_saving_a_step_again_moves_the_best_pointer_away_from_it(files):
    put(files, 1, metrics={"accuracy": 0.8})
    put(files, 2, metrics={"accuracy": 0.9})
    put(files, 2, attempt=2, metrics={"accuracy": 0.1})
    assert shelf.best(files) == files.checkpoint(1)
    assert json.loads(files.pointer("best").read_bytes())["checkpoint"] == "step000001"


def test_saving_a_step_again_works_where_directories_cannot_be_exchanged(files, monkeypatch):
    monkeypatch.setattr(checkpoint, "_RENAME_EXCHANGE", 1 << 20)  # a flag that no kernel knows
    save(files, 10)
    put(files, 10, attempt=2)
    assert shelf.read_card(files.checkpoint(10))["attempt"] == 2
    assert len(list(files.checkpoints.glob("*step*"))) == 1


def test_steps_beyond_a_million_are_in_order(files):
    for step in (999_999, 1_000_000):
        put(files, step)
    assert shelf.latest(files).path == files.checkpoints / "step1000000"


def test_an_unwritable_place_is_named(files):
    files.checkpoints.write_text("a file where the directory should be")
    with pytest.raises(CheckpointError, match=r"checkpoints.*cannot write the checkpoint"):
        put(files, 1)


def test_everything_is_on_disk_before_the_rename_and_the_rename_before_the_return(files, monkeypatch):
    put(files, 1)
    events = []
    fsync, rename = os.fsync, os.rename

    def seen_fsync(descriptor):
        events.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def seen_rename(source, target):
        events.append(("rename", Path(source).name))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "rename", seen_rename)
    put(files, 2)
    at = next(i for i, (what, _) in enumerate(events) if what == "rename")
    temporary = events[at][1]
    before = [name for _, name in events[:at]]
    assert sorted(before[:-1]) == sorted(p.name for p in files.checkpoint(2).iterdir())
    assert before[-1] == temporary
    assert events[at + 1] == ("fsync", "checkpoints")


# ---------------------------------------------------------------- crashes


def check_after_a_crash(report):
    files = RunFiles(Path(report["run"]), DAY)
    before = {
        "the first checkpoint": [],
        "one more": [10],
        "the same step again": [10, 20],
        # Once the new one is there, the others may go.
        "one more, then thinned out": [] if (files.checkpoint(20)).exists() else [10, 15],
    }
    acknowledged = before[report["scenario"]]
    state = examine(files)
    assert state["wrong"] == [], report
    assert set(acknowledged) <= set(state["steps"]), report
    assert state["newest"] in [*(acknowledged[-1:] or [None]), 20], report
    if report["code"] == 0:
        assert state["newest"] == 20
        assert state["leftovers"] == 0
    # The next save cleans up, and everything is in order.
    save(files, 30, attempt=3)
    after = examine(files)
    assert (after["newest"], after["wrong"], after["leftovers"]) == (30, [], 0)
    assert json.loads(files.pointer("last").read_bytes())["step"] == 30


@pytest.mark.parametrize(
    "scenario",
    [
        "one more",
        pytest.param("the first checkpoint", marks=pytest.mark.slow),
        pytest.param("the same step again", marks=pytest.mark.slow),
        pytest.param("one more, then thinned out", marks=pytest.mark.slow),
    ],
)
def test_a_crash_at_any_point_leaves_whole_checkpoints_only(tmp_path, scenario):
    reports = crash("points", tmp_path / "crashes", scenario)
    assert len(reports) > 60
    assert [report["code"] for report in reports] == [77] * (len(reports) - 1) + [0]
    for report in reports:
        check_after_a_crash(report)


@pytest.mark.parametrize("count", [15, pytest.param(110, marks=pytest.mark.slow)])
def test_after_sigkill_the_last_acknowledged_checkpoint_is_there(tmp_path, count):
    reports = crash("kills", tmp_path / "kills", count)
    assert len(reports) == count
    for report in reports:
        assert report["wrong"] == []
        assert (report["newest"] or 0) >= report["acknowledged"]
    assert reports[-1]["newest"] > 3


def test_a_full_disk_is_an_error_and_leaves_the_previous_checkpoint(tmp_path):
    reports = crash("limits", tmp_path / "limits")
    assert sum(report["error"] is not None for report in reports) >= 5
    assert any(report["error"] is None for report in reports)
    for report in reports:
        files = RunFiles(Path(report["run"]), DAY)
        state = examine(files, width=64)
        assert state["wrong"] == []
        assert state["leftovers"] == 0
        assert state["newest"] == (20 if report["error"] is None else 10)
        assert (
            report["error"] is None
            or "step000020: cannot write the checkpoint: File too large" in report["error"]
        )


# ---------------------------------------------------------------- going on


RESUME = """
import random, sys
from pathlib import Path
import numpy as np
import torch
sys.path.insert(0, sys.argv[1])
from crashes import RECORD, make, write, RunFiles, DAY
from daypoint.checkpoints import checkpoint
from daypoint.record import shelf

optimizers = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
}

torch.set_num_threads(1)

def train(directory, make_optimizer, seed, until):
    for set_seed in (torch.manual_seed, random.seed, np.random.seed):
        set_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
    )
    optimizer = make_optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20, cycle_momentum=False)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    files = RunFiles(directory, DAY) if directory.is_dir() else make(directory)
    found = shelf.latest(files).path
    step = 0 if found is None else checkpoint.restore(found, **parts)[1]["step"]
    while step < until:
        x = torch.randn(8, 4)
        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss
        optimizer.step(closure)
        scheduler.step()
        step += 1
        if step % 5 == 0:
            write(files, step=step, epoch=0, record=RECORD, attempt=1, **parts)

for name, make_optimizer in optimizers.items():
    for job in sys.argv[3:]:
        kind, seed, until = job.split(",")
        train(Path(sys.argv[2]) / kind / name, make_optimizer, int(seed), int(until))
"""


def test_a_training_resumed_in_a_new_process_ends_with_the_same_bytes(tmp_path):
    command = [warm.python(), "-c", RESUME, str(CRASHES.parent), str(tmp_path)]
    # The broken one stops after step 12; its last checkpoint is of step 10.
    subprocess.run([*command, "unbroken,0,15", "broken,0,12"], check=True, timeout=120)
    subprocess.run([*command, "broken,1,15"], check=True, timeout=120)
    for name in ("adamw", "sgd", "lbfgs"):
        ends = [RunFiles(tmp_path / kind / name, DAY).checkpoint(15) for kind in ("unbroken", "broken")]
        for file in (f"model_{DAY}.safetensors", f"state_{DAY}.safetensors", f"state_{DAY}.state.json"):
            assert (ends[0] / file).read_bytes() == (ends[1] / file).read_bytes(), (name, file)


def test_restore_tells_where_the_training_stands(files):
    path = save(files, 10)
    model = model_of(0)
    state, card = checkpoint.restore(path, model=model)
    assert (card["step"], card["epoch"], state.extra) == (10, 0, {"step": 10})
    assert (model.weight == 10).all()
    parent = identity.reference(card, str(path))
    assert parent["uid"] == RECORD["uid"]
    assert parent["card_sha256"] == card["card_sha256"]
