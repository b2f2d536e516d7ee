"""Going on after an end of any kind: the same weights, the same numbers, one run."""

import importlib.util
import itertools
import math
import os
import signal
import time

import pytest
import torch
from hydra import compose, initialize_config_dir
from projects import REPOSITORY

import daypoint
from daypoint.base.errors import AddressError, CheckpointError, ConfigError, RunError
from daypoint.record import catalog, identity, journal, shelf
from daypoint.record.replay import valid_events
from daypoint.run import resume


@pytest.fixture(scope="module")
def train_main():
    """`main` of the real train.py; takes a composed config."""
    spec = importlib.util.spec_from_file_location("train", REPOSITORY / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def configured(outputs, *overrides):
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        return compose("config", [f"tracking.outputs={outputs}", "tracking.enabled=false", *overrides])


class Crash(Exception):
    """Stands for whatever ends a training without warning."""


@pytest.fixture
def crash_at(monkeypatch):
    """Make the training die in the step of that number, after its backward pass; None: never."""

    def set_step(step):
        done = itertools.count()
        original = torch.Tensor.backward

        def backward(self, *arguments, **options):
            original(self, *arguments, **options)
            if next(done) == step:
                raise Crash

        monkeypatch.setattr(torch.Tensor, "backward", original if step is None else backward)
        return monkeypatch.undo

    return set_step


def last_weights(run):
    path = shelf.latest(run.files).path
    return next(path.glob("model_*.safetensors")).read_bytes()


def batches(run):
    events = valid_events(journal.read(run.files.journal).events)
    return [(e["step"], e["epoch"], e["metrics"]) for e in events if e["event"] == "batch"]


def log_without_times(run):
    return [{k: v for k, v in epoch.items() if k not in ("seconds", "time")} for epoch in run.epochs]


def only_run(outputs):
    (run,), _ = catalog.list_runs(outputs)
    return run


MODELS = ["linear", "mlp", "cnn", "transformer"]
OPTIMIZERS = ["sgd", "adam", "adamw", "rmsprop", "adagrad"]
SCHEDULERS = ["none", "cosine", "onecycle", "step"]
CASES = [
    *[(model, "adamw", "cosine", []) for model in MODELS],
    *[("mlp", optimizer, "cosine", []) for optimizer in OPTIMIZERS],
    *[("mlp", "sgd", scheduler, []) for scheduler in SCHEDULERS],
    ("linear", "sgd", "cosine", ["data=linear", "data.rows=96"]),
    ("mlp", "adamw", "onecycle", ["model.dropout=0.3", "trainer.accumulate=2", "trainer.clip_norm=1.0"]),
    ("mlp", "adamw", "cosine", ["trainer.precision=bf16", "model.dropout=0.3"]),
]


@pytest.mark.parametrize(
    ("model", "optimizer", "scheduler", "more"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_training_that_died_and_went_on_is_the_one_that_never_died(
    tmp_path, train_main, crash_at, model, optimizer, scheduler, more
):
    chosen = [
        f"model={model}",
        f"optimizer={optimizer}",
        f"scheduler={scheduler}",
        "trainer.epochs=4",
        "data=digits",
    ]
    chosen += ["data.batch_size=512", *more] if "data=linear" not in more else more
    train_main(configured(tmp_path / "whole", *chosen))
    whole = only_run(tmp_path / "whole")
    steps = len(batches(whole))

    undo = crash_at(steps // 2 + 1)  # in the middle of an epoch
    with pytest.raises(Crash):
        train_main(configured(tmp_path / "cut", *chosen))
    undo()
    train_main(configured(tmp_path / "cut", *chosen, "resume=last"))
    cut = only_run(tmp_path / "cut")

    assert last_weights(cut) == last_weights(whole)
    assert batches(cut) == batches(whole)
    assert log_without_times(cut) == log_without_times(whole)
    assert [a["status"] for a in cut.record["attempts"]] == ["FAILED", "FINISHED"]


def test_a_crash_before_the_first_checkpoint_starts_over_and_says_so(tmp_path, train_main, crash_at, capsys):
    chosen = ["model=linear", "trainer.epochs=2", "data.batch_size=512"]
    train_main(configured(tmp_path / "whole", *chosen))
    undo = crash_at(1)
    with pytest.raises(Crash):
        train_main(configured(tmp_path / "cut", *chosen))
    undo()
    train_main(configured(tmp_path / "cut", *chosen, "resume=last"))
    assert "no checkpoint yet: starting over" in capsys.readouterr().out
    assert last_weights(only_run(tmp_path / "cut")) == last_weights(only_run(tmp_path / "whole"))
    assert batches(only_run(tmp_path / "cut")) == batches(only_run(tmp_path / "whole"))


@pytest.fixture
def finished(tmp_path, train_main):
    """A finished run of three epochs."""
    train_main(configured(tmp_path, "model=linear", "trainer.epochs=3", "data.batch_size=512"))
    return only_run(tmp_path)


def test_a_finished_run_goes_on_with_more_epochs(tmp_path, train_main, finished):
    before = batches(finished)
    frozen = resume.resumed(configured(tmp_path, "resume=last"))
    frozen.trainer.epochs = 5
    frozen.resume = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("daypoint.resumed", lambda cfg: frozen_with_address(frozen, finished))
        train_main(frozen)
    run = only_run(tmp_path)
    assert batches(run)[: len(before)] == before
    assert [epoch["epoch"] for epoch in run.epochs] == [0, 1, 2, 3, 4]
    assert run.record["attempts"][1]["changes"]["trainer.epochs"] == [3, 5]
    # The schedule now ends where the training does.
    assert batches(run)[-1][2]["lr"] < 0.001 < batches(run)[len(before) + 1][2]["lr"]


def frozen_with_address(frozen, run):
    cfg = frozen.copy()
    cfg.resume = str(run.directory)
    return cfg


def test_a_new_learning_rate_is_the_one_that_trains(tmp_path, train_main, finished):
    frozen = frozen_with_address(resume.resumed(configured(tmp_path, "resume=last")), finished)
    frozen.trainer.epochs = 6
    old = frozen.optimizer.lr
    frozen.optimizer.lr = old * 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("daypoint.resumed", lambda cfg: frozen)
        train_main(frozen)
    run = only_run(tmp_path)
    assert run.record["attempts"][1]["changes"]["optimizer.lr"] == [old, old * 10]
    # The schedule over all 18 steps, 1 of them warm-up, with the new rate; the first step still had its rate from before.
    for step, _, metrics in batches(run)[10:]:
        expected = old * 10 * 0.5 * (1 + math.cos(math.pi * (step - 1) / 17))
        assert metrics["lr"] == pytest.approx(expected, rel=1e-9)
    card = shelf.read_card(shelf.latest(run.files).path)
    assert card["config"]["optimizer"]["lr"] == old * 10
    assert card["parent"]["step"] == 9


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.outputs", 11),
        ("trainer.seed", 5),
        ("data.batch_size", 3),
        ("optimizer._target_", "torch.optim.SGD"),
    ],
)
def test_what_would_be_another_training_is_refused_before_anything_is_written(tmp_path, finished, key, value):
    from omegaconf import OmegaConf

    frozen = frozen_with_address(resume.resumed(configured(tmp_path, "resume=last")), finished)
    OmegaConf.update(frozen, key, value)
    before = {path: path.read_bytes() for path in finished.directory.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=rf"{key} was .*, now {value!r}"), daypoint.open_run(frozen):
        pass
    assert {path: path.read_bytes() for path in finished.directory.rglob("*") if path.is_file()} == before


def test_the_same_value_in_another_spelling_is_no_change():
    assert resume.changes({"lr": 0.001, "b": [1, 2]}, {"lr": 1e-3, "b": [1, 2]}) == {}
    assert resume.changes({"lr": 0.001}, {"lr": 0.002, "new": None}) == {"lr": (0.001, 0.002)}


def test_the_recorded_config_counts_and_not_todays_files(tmp_path, train_main, finished):
    cfg = resume.resumed(configured(tmp_path, "resume=last", "model=cnn", "optimizer=sgd"))
    assert cfg.model._target_.endswith("Linear")
    assert cfg.optimizer._target_.endswith("AdamW")


def test_a_damaged_last_checkpoint_falls_back_to_the_one_before_and_says_so(
    tmp_path, train_main, finished, capsys
):
    newest = shelf.latest(finished.files).path
    weights = next(newest.glob("model_*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    train_main(configured(tmp_path, "resume=last", "model=linear", "trainer.epochs=3", "data.batch_size=512"))
    said = capsys.readouterr()
    assert weights.name in said.err
    assert "resuming at step 6" in said.out
    run = only_run(tmp_path)
    assert [epoch["epoch"] for epoch in run.epochs] == [0, 1, 2]
    assert shelf.verify(shelf.latest(run.files).path) == []


def test_with_no_whole_checkpoint_left_it_refuses_rather_than_start_over(tmp_path, finished):
    for weights in finished.directory.rglob("model_*.safetensors"):
        weights.write_bytes(b"")
    cfg = resume.resumed(configured(tmp_path, "resume=last"))
    with pytest.raises(CheckpointError, match="none of the checkpoints is whole"), daypoint.open_run(cfg):
        pass


def test_forgetting_to_restore_is_an_error_and_no_training_from_scratch(tmp_path, finished):
    cfg = resume.resumed(configured(tmp_path, "resume=last"))
    with pytest.raises(RunError, match=r"call run\.restore"), daypoint.open_run(cfg) as run:
        for _ in run.epochs(3):
            pass


def test_an_address_that_names_nothing_or_too_much_is_refused(tmp_path, train_main, finished):
    with pytest.raises(AddressError, match="names no run"):
        catalog.find_one("19990101", tmp_path)
    with pytest.raises(AddressError, match="there are no runs in"):
        catalog.find_one("last", tmp_path / "nowhere")
    train_main(configured(tmp_path, "model=linear", "trainer.epochs=1", "data.batch_size=512"))
    with pytest.raises(AddressError, match="expected one run, found 2"):
        catalog.find_one("today", tmp_path)


def test_without_hydra_a_run_goes_on_with_resume(tmp_path):
    cfg = {"lr": 0.1, "tracking": {"enabled": False, "outputs": str(tmp_path)}}

    def train(epochs, **options):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with daypoint.open_run(cfg, **options) as run:
            extra = run.restore(model=model, optimizer=optimizer)
            for epoch in run.epochs(epochs):
                loss = model(torch.randn(4, 2)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)
                run.save(model=model, optimizer=optimizer, note=f"epoch {epoch}")
        return extra

    assert train(2) == {}
    assert train(4, resume="last") == {"note": "epoch 1"}
    run = only_run(tmp_path)
    assert [(step, epoch) for step, epoch, _ in batches(run)] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert [epoch["epoch"] for epoch in run.epochs] == [0, 1, 2, 3]


@pytest.mark.parametrize("target", ["oc.env:HOME", "now:%Y", "a}${oc.env:HOME", "", ".a", "3"])
def test_a_record_cannot_have_anything_evaluated(target):
    record = {"config": {"a": 1, "b": 1}, "filled": {}, "references": {"b": target}}
    with pytest.raises(ConfigError, match="b: expected a reference to another key"):
        resume.thawed(record)


# ---------------------------------------------------------------- real processes


def wait_for_steps(project, process, steps):
    end = time.monotonic() + 120
    while True:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end
        for directory in project.runs():
            events = journal.read(directory / "journal.jsonl").events
            if sum(e["event"] == "batch" for e in events) >= steps:
                return directory
        time.sleep(0.02)


SLOWLY = ("model=mlp", "model.dropout=0.2", "trainer.epochs=60", "tracking=off")


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR2], ids=lambda n: n.name
)
def test_killed_for_real_and_resumed_the_weights_are_the_very_same(project, number):
    project.train(*SLOWLY)
    project.outputs.rename(project.root / "whole")
    cut_outputs = project.root / "cut"
    process = project.start(project.root / "train.py", *SLOWLY, f"tracking.outputs={cut_outputs}", cold=True)

    def runs():
        return [d for d in cut_outputs.glob("*/*") if (d / "run.json").exists()]

    end = time.monotonic() + 60
    while not runs() or (runs()[0] / "journal.jsonl").stat().st_size < 40000:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(process.pid, number)
    output = process.communicate(timeout=60)[0]
    assert process.returncode != 0, output
    (directory,) = runs()
    if number is not signal.SIGKILL:
        assert "stopping after this step, with a checkpoint" in output
        assert identity.read_run(directory)["status"] == "KILLED"
    project.train(f"resume={directory}", *SLOWLY, f"tracking.outputs={cut_outputs}")
    whole = catalog.read(next((project.root / "whole").glob("*/*")), project.root / "whole")
    again = catalog.read(directory, cut_outputs)
    assert last_weights(again) == last_weights(whole)
    assert batches(again) == batches(whole)
    assert log_without_times(again) == log_without_times(whole)
    assert [a["status"] for a in again.record["attempts"]] == ["KILLED", "FINISHED"]


@pytest.mark.slow
def test_a_run_that_is_being_trained_is_not_resumed(project):
    process = project.start(project.root / "train.py", "trainer.epochs=100000", "tracking=off", cold=True)
    wait_for_steps(project, process, 5)
    done = project.train("resume=last", check=False)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert done.returncode == 1
    assert "is being trained by process" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_in_mlflow_a_resumed_run_is_one_run_and_every_step_stands_there_once(project):
    from stores import mlflow_run, rows
    from waiting import until

    process = project.start(project.root / "train.py", "trainer.epochs=100000", cold=True)
    directory = wait_for_steps(project, process, 200)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: identity.read_run(directory)["status"] == "KILLED", 60)
    epochs = len(catalog.read(directory, project.outputs).epochs) + 2
    project.train("resume=last", f"trainer.epochs={epochs}")
    run, status = mlflow_run(project, directory)
    assert status == "FINISHED"
    steps = [
        s
        for (s,) in rows(
            project, "SELECT step FROM metrics WHERE run_uuid=? AND key='loss' ORDER BY step", run
        )
    ]
    expected = batches(catalog.read(directory, project.outputs))
    assert steps[: len(expected)] == [step for step, _, _ in expected]
    assert len(steps) == len(set(steps))
    assert len(rows(project, "SELECT 1 FROM runs")) == 1


@pytest.mark.parametrize("address", ["nonsense", "today"])
def test_an_address_that_names_no_run_is_one_message(project, address):
    done = project.train(f"resume={address}", check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {address}: expected ")
