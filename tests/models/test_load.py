"""Load by address: the day's model is the right one, it is the saved one, and a card cannot call what it likes."""

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

import daypoint
from daypoint.base import files
from daypoint.base.day import promoted_file
from daypoint.base.errors import AddressError, CheckpointError
from daypoint.models import load

CONFIG = {"model": {"_target_": "torch.nn.Linear", "in_features": 3, "out_features": 2}}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A project to stand in."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(
    root, *values, seed=0, config=CONFIG, experiment="digits", monitor="val/accuracy", fail=False, **more
):
    """A run that saves a checkpoint for each value of the monitored metric; its directory and its last weights."""
    torch.manual_seed(seed)
    net = nn.Linear(3, 2)
    weights = []
    tracking = {"enabled": False, "outputs": str(root / "outputs"), "experiment": experiment}
    try:
        with daypoint.open_run({**config, "tracking": tracking}, monitor=monitor, quiet=True, **more) as run:
            for epoch, value in enumerate(values):
                with run.epoch(epoch), torch.no_grad():
                    net.weight += 1
                    weights.append(net.weight.clone())
                    run.log(loss=1.0)
                    run.log_epoch({"val/accuracy": value})
                run.save(model=net)
            if fail:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    return run, weights


def test_a_run_gives_its_best_checkpoint_in_eval_mode_with_its_card(root):
    run, weights = train(root, 0.5, 0.9, 0.7)
    loaded = daypoint.load(run.address)
    assert type(loaded) is nn.Linear
    assert torch.equal(loaded.weight, weights[1])
    assert not loaded.training
    assert loaded.card["uid"] == run.uid
    assert loaded.card["metrics"]["val/accuracy"] == 0.9


def test_without_a_monitored_metric_the_last_checkpoint_is_taken(root):
    run, weights = train(root, 0.5, 0.4, monitor=None)
    assert torch.equal(daypoint.load(run.uid).weight, weights[-1])


def test_the_model_of_a_day_is_the_best_of_its_finished_runs(root):
    train(root, 0.5, seed=1)
    best, weights = train(root, 0.8, seed=2)
    train(root, 0.99, seed=3, fail=True)
    train(root, math.nan, seed=4)
    train(root, 0.7, seed=5)
    loaded = daypoint.load(best.day)
    assert loaded.card["uid"] == best.uid
    assert torch.equal(loaded.weight, weights[0])


def test_of_two_equal_runs_the_later_one_wins(root):
    train(root, 0.8)
    later, _ = train(root, 0.8)
    assert daypoint.load("today").card["uid"] == later.uid


def test_less_is_better_when_the_mode_is_min(root):
    less, _ = train(root, 0.1, mode="min")
    train(root, 0.9, mode="min")
    assert daypoint.load("today").card["uid"] == less.uid


def test_a_day_of_two_experiments_asks_which(root):
    train(root, 0.9, experiment="digits")
    run, _ = train(root, 0.1, experiment="prices")
    with pytest.raises(AddressError, match='digits, prices; say which with experiment="NAME"'):
        daypoint.load("today")
    assert daypoint.load("today", experiment="prices").card["uid"] == run.uid
    with pytest.raises(AddressError, match="expected one of digits, prices"):
        daypoint.load("today", experiment="price")


def test_a_day_without_a_finished_run_says_what_it_has(root):
    run, _ = train(root, 0.9, fail=True)
    with pytest.raises(
        AddressError, match=rf"expected a finished run with a checkpoint, found {run.address} FAILED"
    ):
        daypoint.load("today")
    assert daypoint.load(run.address).card["uid"] == run.uid


def test_a_run_without_a_checkpoint_says_so(root):
    run, _ = train(root)
    with pytest.raises(AddressError, match="expected a checkpoint"):
        daypoint.load(run.address)


def test_an_address_of_several_runs_lists_them(root):
    first, _ = train(root, 0.9)
    second, _ = train(root, 0.9)
    with pytest.raises(AddressError, match=rf"(?s){first.address}.*{second.address}"):
        daypoint.load(f"{first.day}/{first.directory.name[:2]}")


def test_a_checkpoint_is_loaded_by_its_path_from_anywhere(root, tmp_path_factory, monkeypatch):
    run, weights = train(root, 0.9, 0.5)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    loaded = daypoint.load(run.directory / "checkpoints" / "step000002")
    assert torch.equal(loaded.weight, weights[1])
    assert daypoint.load("today", outputs=root / "outputs").card["step"] == 1
    monkeypatch.setenv("DAYPOINT_OUTPUTS", str(root / "outputs"))
    assert daypoint.load("today").card["step"] == 1


def test_a_promoted_checkpoint_is_the_model_of_its_day(root):
    low, _ = train(root, 0.2, 0.1)
    train(root, 0.9)
    pin = {"uid": low.uid, "checkpoint": "step000002"}
    files.write_atomic(promoted_file(root / "outputs", low.day), files.dumps({"pins": {"digits": pin}}))
    chosen = load.choose(low.day, root / "outputs")
    assert (chosen.card["uid"], chosen.card["step"]) == (low.uid, 2)


def test_a_pin_to_a_run_that_is_gone_is_an_error(root):
    run, _ = train(root, 0.2)
    pin = {"uid": "0" * 16, "checkpoint": "step000001"}
    files.write_atomic(promoted_file(root / "outputs", run.day), files.dumps({"pins": {"digits": pin}}))
    with pytest.raises(AddressError, match="expected the promoted run 0000"):
        daypoint.load("today")


def test_loading_leaves_every_random_state_as_it_was(root):
    run, _ = train(root, 0.9)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    daypoint.load(run.address)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


def test_a_config_without_a_model_takes_one_that_was_built_by_hand(root):
    run, weights = train(root, 0.9, config={"lr": 0.1})
    with pytest.raises(
        CheckpointError, match=r"expected a section `model` with a _target_.*daypoint\.load\(ADDRESS, model="
    ):
        daypoint.load(run.address)
    mine = nn.Linear(3, 2)
    assert daypoint.load(run.address, model=mine) is mine
    assert torch.equal(mine.weight, weights[0])


def test_weights_that_do_not_fit_name_what_differs(root):
    run, _ = train(root, 0.9, config={"model": {**CONFIG["model"], "out_features": 5}})
    with pytest.raises(CheckpointError, match=r"weight \(file: \(2, 3\) torch\.float32, model: \(5, 3\)"):
        daypoint.load(run.address)


@pytest.mark.parametrize("path", ["os.system", "torch.load", "torch.nn.modules.module.torch.load"])
def test_a_card_cannot_call_what_it_likes(root, path):
    run, _ = train(root, 0.9, config={"model": {"_target_": path, "command": "touch pwned"}})
    with pytest.raises(CheckpointError, match=r"expected something from torch\.nn"):
        daypoint.load(run.address)
    assert not (root / "pwned").exists()


def test_a_class_that_was_moved_is_a_clear_error(root):
    run, _ = train(root, 0.9, config={"model": {"_target_": "torch.nn.Linaer"}})
    with pytest.raises(CheckpointError, match=r"did you mean torch\.nn\.Linear\?.*model=MODEL"):
        daypoint.load(run.address)


def test_an_argument_that_is_gone_is_a_clear_error(root):
    run, _ = train(root, 0.9, config={"model": {**CONFIG["model"], "colour": 1}})
    with pytest.raises(CheckpointError, match=r"torch\.nn\.Linear: .*colour.*was it changed since"):
        daypoint.load(run.address)


def test_an_interpolation_in_a_card_is_not_evaluated(root):
    run, _ = train(root, 0.9, config={"model": {**CONFIG["model"], "device": r"\${oc.env:HOME}"}})
    with pytest.raises(
        CheckpointError, match=r"model\.device: expected a resolved value, found '\$\{oc\.env:HOME\}'"
    ):
        daypoint.load(run.address)


def test_a_flipped_bit_is_found_on_request_and_a_cut_file_always(root):
    run, _ = train(root, 0.9)
    weights = next(run.directory.glob("checkpoints/step*/model_*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match="content has changed"):
        daypoint.load(run.address)  # so small a file is always read
    weights.write_bytes(content[:-1])
    with pytest.raises(AddressError, match=r"found none that is whole"):
        daypoint.load(run.address)
    with pytest.raises(CheckpointError, match=r"expected \d+ bytes, found \d+"):
        daypoint.load(weights.parent)
