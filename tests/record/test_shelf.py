"""The shelf: each damage is named and passed over, the last and the best are the right ones, pruning spares them."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from crashes import RECORD, make, model_of, put, save

from daypoint.base.day import CheckpointFiles
from daypoint.base.errors import CheckpointError
from daypoint.checkpoints import checkpoint
from daypoint.record import documents, identity, shelf

DAY = RECORD["day"]


@pytest.fixture
def files(tmp_path):
    return make(tmp_path / "run")


# ---------------------------------------------------------------- damage


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 0x01
    path.write_bytes(content)


DAMAGES = {
    "first byte flipped": lambda p: flip(p, 0),
    "header flipped": lambda p: flip(p, 12),
    "middle flipped": lambda p: flip(p, p.stat().st_size // 2),
    "last byte flipped": lambda p: flip(p, -1),
    "emptied": lambda p: p.write_bytes(b""),
    "cut to 30 %": lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size * 3 // 10]),
    "cut by three bytes": lambda p: p.write_bytes(p.read_bytes()[:-3]),
    "zeroed": lambda p: p.write_bytes(bytes(p.stat().st_size)),
    "a byte more": lambda p: p.write_bytes(p.read_bytes() + b"x"),
    "removed": lambda p: p.unlink(),
}
NAMES = [
    f"model_{DAY}.safetensors",
    f"model_{DAY}.json",
    f"state_{DAY}.safetensors",
    f"state_{DAY}.state.json",
]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("name", NAMES)
def test_each_damage_is_named_refused_and_skipped(files, name, damage):
    save(files, 10)
    path = save(files, 20)
    damage(path / name)
    problems = shelf.verify(path)
    found = shelf.latest(files)
    assert len(problems) == 1
    assert problems[0].startswith(
        str(path / name) if (path / name).exists() or name != NAMES[1] else str(path)
    )
    assert found.path == files.checkpoint(10)
    assert found.skipped == problems
    before = model_of(-1)
    with pytest.raises(CheckpointError, match="step000020"):
        checkpoint.load_weights(path, before, full_verify=True)
    assert (before.weight == -1).all()


def test_a_cut_file_is_noticed_without_reading_it(files):
    path = save(files, 20)
    DAMAGES["cut by three bytes"](path / f"model_{DAY}.safetensors")
    with pytest.raises(CheckpointError, match=r"model_20260328\.safetensors: expected \d+ bytes, found \d+"):
        checkpoint.load_weights(path, model_of(0))


def test_without_any_whole_checkpoint_nothing_is_found_and_the_reasons_are_told(files):
    for step in (10, 20):
        (save(files, step) / f"model_{DAY}.safetensors").write_bytes(b"")
    found = shelf.latest(files)
    assert found.path is None
    assert len(found.skipped) == 2


def test_a_run_without_checkpoints_has_no_latest(files):
    assert shelf.latest(files) == shelf.Found(None, [])
    assert shelf.best(files) is None
    assert shelf.history(files) == []


def test_an_edited_hyperparameter_is_named(files):
    record = {**RECORD, "config": {"optimizer": {"lr": 0.25}}}
    card = put(files, 1, record=record) / f"model_{DAY}.json"
    card.write_text(card.read_text().replace("0.25", "0.5"))
    assert "edited" in shelf.verify(card.parent)[0]
    assert "hyperparameter" in shelf.verify(card.parent)[0]


def test_an_edited_metric_is_noticed(files):
    card = put(files, 1, metrics={"accuracy": 0.25}) / f"model_{DAY}.json"
    card.write_text(card.read_text().replace("0.25", "0.99"))
    assert "edited" in shelf.verify(card.parent)[0]


def test_a_card_of_another_step_is_named(files):
    first, second = save(files, 10), save(files, 20)
    (second / f"model_{DAY}.json").write_bytes((first / f"model_{DAY}.json").read_bytes())
    problems = shelf.verify(second)
    assert any("the card is of step 10, the directory of step 20" in problem for problem in problems)
    assert any(f"model_{DAY}.safetensors: the content has changed" in problem for problem in problems)


def test_a_checkpoint_of_another_run_is_named(files, tmp_path):
    other = make(tmp_path / "other")
    identity.write_run(other.directory, {**RECORD, "uid": "ffffffffffffffff"})
    save(files, 10)
    files.checkpoints.rename(other.checkpoints)
    assert (
        "the card is of run 00112233aabbccdd, the directory of run ffffffffffffffff"
        in shelf.verify(other.checkpoint(10))[0]
    )


def test_a_second_card_is_refused(files):
    path = save(files, 10)
    (path / "model_20260401.json").write_bytes((path / f"model_{DAY}.json").read_bytes())
    assert "expected one identity card" in shelf.verify(path)[0]


def test_a_file_that_the_card_does_not_list_is_named(files):
    path = save(files, 10)
    (path / "notes.txt").write_text("mine")
    assert shelf.verify(path) == [f"{path / 'notes.txt'}: not listed in the card"]


def test_a_file_of_the_users_own_does_not_keep_a_checkpoint_from_being_used(files):
    path = save(files, 10)
    (path / "notes.txt").write_text("mine")
    assert shelf.latest(files) == shelf.Found(path, [])
    checkpoint.load_weights(path, model_of(0), full_verify=True)


def test_a_copied_checkpoint_is_whole_outside_its_run(files, tmp_path):
    path = save(files, 10)
    path.rename(tmp_path / "copy")
    assert shelf.verify(tmp_path / "copy") == []


def test_a_directory_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="found no such directory"):
        checkpoint.load_weights(tmp_path / "absent", model_of(0))
    with pytest.raises(CheckpointError, match="found no identity card"):
        checkpoint.load_weights(tmp_path, model_of(0))


class Bomb:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", [n for n in NAMES if n != f"model_{DAY}.json"])
def test_a_pickle_in_place_of_a_file_is_never_run(files, tmp_path, name):
    path = save(files, 10)
    marker = tmp_path / "executed"
    (path / name).write_bytes(pickle.dumps(Bomb(marker)))
    # A card that vouches for it: the seal is against accidents, so an attacker can write one.
    card = {k: v for k, v in shelf.read_card(path).items() if k not in ("card_sha256", "files")}
    listed = {
        p.name: {"bytes": p.stat().st_size, "sha256": documents.sha256(p)}
        for p in path.iterdir()
        if p.name in NAMES[:1] + NAMES[2:]
    }
    CheckpointFiles(path, DAY).card.write_bytes(identity.seal(card, listed))
    assert shelf.verify(path) == []
    model = model_of(0)
    with pytest.raises(CheckpointError):
        checkpoint.restore(path, model=model, optimizer=torch.optim.SGD(model.parameters()))
    assert not marker.exists()


def test_a_card_that_lists_other_files_is_refused(files):
    path = save(files, 10)
    card = {k: v for k, v in shelf.read_card(path).items() if k not in ("card_sha256", "files")}
    CheckpointFiles(path, DAY).card.write_bytes(
        identity.seal(card, {"../../run.json": {"bytes": 1, "sha256": ""}})
    )
    assert "it lists ['../../run.json'], expected" in shelf.verify(path)[0]


# ---------------------------------------------------------------- last and best


def values(files, mode, *pairs):
    record = {**RECORD, "monitor": {"metric": "m", "mode": mode}}
    for step, value in pairs:
        put(files, step, record=record, metrics={} if value is None else {"m": value})
    found = shelf.best(files)
    return None if found is None else shelf.read_card(found)["step"]


@pytest.mark.parametrize(
    ("mode", "pairs", "expected"),
    [
        ("max", [(1, 0.5), (2, 0.9), (3, 0.7)], 2),
        ("min", [(1, 0.5), (2, 0.1), (3, 0.7)], 2),
        ("max", [(1, 0.5), (2, math.nan)], 1),
        ("min", [(1, math.nan), (2, 0.5), (3, math.nan)], 2),
        ("max", [(1, math.nan)], None),
        ("max", [(1, 0.9), (2, 0.9), (3, 0.1)], 2),
        ("min", [(1, 0.1), (2, 0.1)], 2),
        ("max", [(1, 9.0), (2, 10.0)], 2),
        ("max", [(1, 2**60), (2, 2**60 + 1), (3, 2**60)], 2),
        ("max", [(1, 0.5), (2, None)], 1),
        ("max", [(1, None)], None),
        ("min", [(1, 0.0), (2, -0.5)], 2),
        ("min", [(1, math.inf), (2, 1e300)], 2),
    ],
)
def test_the_best_is_numeric_never_nan_and_the_later_of_equals(files, mode, pairs, expected):
    assert values(files, mode, *pairs) == expected


def test_without_a_monitor_there_is_no_best(files):
    put(files, 1, record={**RECORD, "monitor": None}, metrics={"accuracy": 1.0})
    assert shelf.best(files) is None
    assert not files.pointer("best").exists()


def test_a_damaged_best_gives_way_to_the_next(files):
    for step, value in ((1, 0.8), (2, 0.9), (3, 0.1)):
        put(files, step, metrics={"accuracy": value})
    flip(files.checkpoint(2) / f"model_{DAY}.safetensors", -1)
    assert shelf.best(files, full=True) == files.checkpoint(1)


def test_what_a_later_attempt_made_is_newer_even_at_an_earlier_step(files):
    put(files, 30)
    put(files, 20, attempt=2)
    assert shelf.latest(files).path == files.checkpoint(20)


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "left"),
    [
        (None, None, [1, 2, 3, 4, 5]),
        (2, None, [2, 4, 5]),
        (2, 2, [2, 3, 4, 5]),
        (1, 0, [2, 5]),
        (0, 0, [2, 5]),
        (None, 2, [2, 3, 5]),
        (9, 1, [1, 2, 3, 4, 5]),
    ],
)
def test_thinning_out_keeps_the_last_the_best_and_both_pointers(files, keep_last, keep_best, left):
    for step, value in ((1, 0.1), (2, 0.9), (3, 0.8), (4, 0.2), (5, 0.3)):
        put(files, step, metrics={"accuracy": value})
    removed = shelf.prune(files, keep_last, keep_best)
    assert sorted(int(p.name[4:]) for p in files.checkpoints.glob("step*")) == left
    assert sorted(int(p.name[4:]) for p in removed) == sorted({1, 2, 3, 4, 5} - set(left))
    for name, step in (("last", 5), ("best", 2)):
        assert json.loads(files.pointer(name).read_bytes())["step"] == step


def test_a_damaged_checkpoint_does_not_count_and_is_not_removed(files):
    for step in (1, 2, 3):
        put(files, step)
    (files.checkpoint(3) / f"model_{DAY}.safetensors").unlink()
    shelf.prune(files, keep_last=1, keep_best=None)
    assert sorted(p.name for p in files.checkpoints.glob("step*")) == ["step000002", "step000003"]


def test_looking_and_verifying_do_not_import_torch(files):
    save(files, 10)
    script = (
        "import sys; from pathlib import Path; from daypoint.record import shelf; from daypoint.base.day import RunFiles;"
        f"f = RunFiles(Path({str(files.directory)!r}), {DAY!r});"
        "assert shelf.verify(f.checkpoint(10)) == [];"
        "assert shelf.latest(f).path and shelf.best(f);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
