"""Learning curves read from journals."""

import math

import pytest
from written_runs import WrittenRun

from daypoint.base import files
from daypoint.base.errors import ConfigError
from daypoint.plots import curves
from daypoint.record import replay
from daypoint.tracking import fold

NAN, INF = math.nan, math.inf


def load(run, metrics=None, address=None):
    return curves.load(
        run.files,
        run.record,
        address=address or f"20260328/{run.directory.name}",
        status="FINISHED",
        metrics=metrics,
    )


# ---------------------------------------------------------------- reading


def test_every_batch_is_there_with_its_step(tmp_path):
    run = WrittenRun(tmp_path)
    for value in (1, 0.5, True, NAN, -INF, 10**400):
        run.log(loss=value, lr=0.1)
    curve = load(run).curves["loss"]
    assert curve.steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert str(curve.values.tolist()) == "[1.0, 0.5, 1.0, nan, -inf, inf]"
    assert curve.nonfinite == {"NaN": 1, "inf": 1, "-inf": 1}
    assert curve.by_batch


def test_what_is_kept_is_loss_and_the_monitored_metric_unless_asked(tmp_path):
    run = WrittenRun(tmp_path, monitor={"metric": "val/accuracy", "mode": "max"})
    run.log(loss=1.0, lr=0.1)
    run.log_epoch(**{"val/accuracy": 0.5, "val/loss": 1.0})
    assert list(load(run).curves) == ["loss", "val/accuracy"]
    assert list(load(run, ["val/loss", "lr"]).curves) == ["val/loss", "lr"]
    assert load(run).names == ["loss", "lr", "val/accuracy", "val/loss"]
    assert not load(run).curves["val/accuracy"].by_batch


def test_a_run_with_neither_shows_what_it_logged_first(tmp_path):
    run = WrittenRun(tmp_path)
    run.log(reward=1.0, length=2)
    assert list(load(run).curves) == ["reward"]


def test_the_statistics_of_an_epoch_lie_over_its_steps(tmp_path):
    run = WrittenRun(tmp_path)
    for value in (3.0, 1.0):
        run.log(loss=value)
    run.epoch(loss=[3.0, 1.0])
    epochs = load(run).curves["loss"].epochs
    assert {name: of.tolist() for name, of in epochs.items()} == {
        "first": [0.0], "last": [1.0], "mean": [2.0], "min": [1.0], "max": [3.0],
    }  # fmt: skip


def test_steps_that_were_done_again_count_once_as_in_the_replay(tmp_path):
    run = WrittenRun(tmp_path)
    for attempt in range(3):
        for step in range(6):
            run.log(loss=float(10 * attempt + step))
            run.log_epoch(val=float(step))
        run.epoch(loss=[1.0])
        if attempt < 2:
            run.die()
            run.resume(4 - attempt)
    found = load(run, ["loss", "val"])
    valid = replay.valid_events(fold.events(run.files.journal))
    for name, kind in (("loss", "batch"), ("val", "epoch_metrics")):
        expected = [(e["step"], e["metrics"][name]) for e in valid if e["event"] == kind]
        assert list(zip(found.curves[name].steps, found.curves[name].values, strict=True)) == expected
    assert found.resumed_at == [3]
    assert len(found.curves["loss"].epochs["mean"]) == sum(e["event"] == "epoch" for e in valid)


def test_damaged_lines_are_left_out_and_the_rest_is_read(tmp_path):
    run = WrittenRun(tmp_path)
    for value in (1.0, 2.0, 3.0):
        run.log(loss=value)
    content = run.files.journal.read_bytes()
    run.files.journal.write_bytes(content.replace(b'"loss":2.0', b'"loss":7.0') + b'{"event":"batch","ti')
    assert load(run).curves["loss"].values.tolist() == [1.0, 3.0]


def test_a_run_without_a_journal_has_no_curves(tmp_path):
    run = WrittenRun(tmp_path)
    run.files.journal.unlink()
    assert load(run).curves == {}


def test_the_best_checkpoint_is_where_its_pointer_says(tmp_path):
    run = WrittenRun(tmp_path)
    for value in (3.0, 1.0, 2.0):
        run.log(loss=value)
        run.log_epoch(val=value)
    assert load(run).best_step is None
    run.files.checkpoints.mkdir()
    files.write_atomic(run.files.pointer("best"), b'{"step": 2}')
    found = load(run, ["val"])
    assert found.best_step == 2
    assert found.curves["val"].at(2) == 1.0
    files.write_atomic(run.files.pointer("best"), b"{")
    assert load(run).best_step is None


def test_a_metric_that_nobody_logged_is_refused_with_the_nearest_ones(tmp_path):
    run = WrittenRun(tmp_path)
    run.log(loss=1.0, accuracy=0.5)
    with pytest.raises(ConfigError, match=r"metric acuracy: .*did you mean accuracy"):
        curves.check_metrics(["acuracy"], [load(run)])
    curves.check_metrics(["accuracy"], [load(run)])


def test_of_a_run_without_values_every_metric_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="nothing was logged yet"):
        curves.check_metrics(["loss"], [load(WrittenRun(tmp_path))])


# ---------------------------------------------------------------- what sets runs apart


def run_with(root, overrides, config=None, address="20260328/141502-123456"):
    run = WrittenRun(root, **({"config": config} if config else {}))
    run.record["attempts"][0]["overrides"] = overrides
    return load(run, address=address)


def test_runs_are_told_apart_by_their_address_and_the_overrides_that_differ(tmp_path):
    def config(lr):
        return {
            "optimizer": {"lr": lr},
            "trainer": {"epochs": 2, "amp": False},
            "tracking": {"name": str(lr)},
        }

    given = ["trainer.epochs=2", "trainer.amp=false", "tracking.name=x"]
    runs = [
        run_with(tmp_path, [*given, "optimizer.lr=1e-1"], config(0.1)),
        run_with(tmp_path, ["trainer.amp=False", "+optimizer.lr=0.2"], config(0.2), "20260328/141503-1"),
        run_with(tmp_path, [], config(0.005), address="20260329/150000-123456"),
    ]
    assert curves.labels(runs) == [
        "20260328/141502  lr=0.1",
        "20260328/141503-1  lr=0.2",
        "20260329/150000  lr=0.005",
    ]


def test_a_group_that_only_some_have_chosen_is_named_for_all(tmp_path):
    runs = [run_with(tmp_path, of, address=f"d/{of}") for of in (["model=cnn"], [])]
    runs[1].record["choices"] = {"model": "mlp"}
    assert [label.split()[-1] for label in curves.labels(runs)] == ["model=cnn", "model=mlp"]


def test_two_keys_with_one_last_part_are_written_out(tmp_path):
    runs = [run_with(tmp_path, [f"a.lr={i}", f"b.lr={i}"], address=f"d/{i}") for i in (1, 2)]
    assert curves.labels(runs) == ["d/1  a.lr=1 b.lr=1", "d/2  a.lr=2 b.lr=2"]


def test_runs_that_differ_in_nothing_are_told_apart_by_their_address(tmp_path):
    runs = [run_with(tmp_path, [], address=f"20260328/{time}-123456") for time in ("141502", "151502")]
    assert curves.labels(runs) == ["20260328/141502  mlp-adamw", "20260328/151502  mlp-adamw"]


def test_jobs_of_a_sweep_that_differ_in_nothing_are_told_apart(tmp_path):
    runs = [run_with(tmp_path, [], address=f"20260328/sweep-150233-654321/{job}") for job in (0, 1)]
    assert len(set(curves.labels(runs))) == 2


def test_a_single_run_goes_by_its_name(tmp_path):
    assert curves.labels([run_with(tmp_path, ["optimizer.lr=0.1"])]) == ["mlp-adamw"]
