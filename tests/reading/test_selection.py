"""Facts of runs by name, and the selection of runs by a query."""

import math

import pytest
from filed_runs import OPTIONAL, epoch, file_run

from daypoint.base import day
from daypoint.base.errors import AddressError, ConfigError
from daypoint.reading.facts import FACTS, RunFacts
from daypoint.reading.query import MISSING, parse_name
from daypoint.reading.selection import Selection
from daypoint.record import catalog

MLP = {"model": {"_target_": "zoo.MLP", "hidden": [64], "dropout": None}, "optimizer": {"lr": 1e-5}}
CNN = {"model": {"_target_": "zoo.CNN", "channels": 8}, "optimizer": {"lr": 0.1}, "scheduler": {"gamma": 0.5}}


@pytest.fixture
def outputs(tmp_path):
    """Two runs with an mlp and one with a cnn that failed, over two days."""
    outputs = tmp_path / "outputs"
    file_run(
        outputs,
        "20260301-100000",
        config=MLP,
        epochs=[epoch(0, val__accuracy=0.9), epoch(1, val__accuracy=0.8)],
    )
    file_run(
        outputs,
        "20260301-110000",
        config=MLP,
        epochs=[epoch(0, batches={"loss": [3.0, 1.0]}, val__accuracy=0.7)],
    )
    file_run(
        outputs,
        "20260302-100000",
        config=CNN,
        status="FAILED",
        tags={},
        git={"commit": "1234567", "dirty": True},
    )
    return outputs


def found(outputs, text):
    """The times of the runs for which a query holds."""
    selection = Selection(outputs, text)
    times = list(selection.each(selection.directories(None), lambda of: of.run.address[2:11]))
    selection.check()
    assert not selection.complaints
    return times


A, B, C = "260301/10", "260301/11", "260302/10"


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("optimizer.lr = 0.00001", [A, B]),
        ("lr >= 0.1", [C]),
        ("config.optimizer.lr < 1", [A, B, C]),
        ("model.dropout = null", [A, B]),
        ("model = mlp", [A, B]),
        ("model.hidden = [64]", [A, B]),
        ("status = failed", [C]),
        ("status in [failed, killed] or lr < 0.01", [A, B, C]),
        ("day = 2026-03-01", [A, B]),
        ("day > 20260301", [C]),
        ("time >= 11:00", [B]),
        ("val/accuracy = 0.8", [A]),
        ("best(val/accuracy) = 0.9", [A]),
        ("best(accuracy) >= 0.7", [A, B]),
        ("min(loss) = 1 and max(loss) = 3 and loss = 2", [B]),
        ("first(val/accuracy) = 0.9 or best = 0.7", [A, B]),
        ("tags.team = blue", [A, B]),
        ("not tags.team = blue", []),
        ("git.dirty", [C]),
        ("git.commit = 1234567", [C]),
        ("git.branch = main", [A, B]),
        ("versions.torch = 2.13.0", [A, B, C]),
        ("scheduler.gamma > 0 or epochs = 2", [A, C]),
        ("not scheduler.gamma = 0.5", []),
        ("job = null and sweep = null", [A, B, C]),
    ],
)
def test_runs_are_found_by_what_they_are(outputs, text, times):
    assert found(outputs, text) == times


def test_a_name_that_no_run_has_is_refused_with_the_nearest_ones(outputs):
    with pytest.raises(ConfigError, match=r"optimizer\.lx: expected .*nearest are optimizer\.lr"):
        found(outputs, "status = finished or optimizer.lx > 1")
    with pytest.raises(ConfigError, match="nearest are val/accuracy"):
        found(outputs, "best(val/acuracy) > 1")


def test_a_short_name_of_two_things_is_refused(outputs):
    file_run(outputs, "20260303-100000", config={"optimizer": {"lr": 1}, "scheduler": {"lr": 2}})
    with pytest.raises(ConfigError, match=r"config\.optimizer\.lr and config\.scheduler\.lr"):
        found(outputs, "lr > 0")


def test_a_short_name_that_means_another_thing_in_another_run_is_refused(outputs):
    file_run(outputs, "20260303-100000", config={"scheduler": {"lr": 2}})
    with pytest.raises(ConfigError, match="only one thing"):
        found(outputs, "lr > 0")


def test_a_metric_named_like_a_hyperparameter_has_to_be_told_from_it(outputs):
    file_run(outputs, "20260303-100000", config=MLP, epochs=[epoch(0, lr=0.5)])
    with pytest.raises(ConfigError, match=r"last\(lr\) and config\.optimizer\.lr"):
        found(outputs, "lr > 0")
    assert found(outputs, "last(lr) > 0") == ["260303/10"]


def test_a_wrong_day_in_a_query_is_refused(outputs):
    with pytest.raises(AddressError, match="day: expected a day"):
        found(outputs, "day = 20261301")


def test_nan_is_nobodys_best(outputs):
    nan = math.nan
    directory = file_run(
        outputs, "20260303-100000", epochs=[epoch(i, x=v) for i, v in enumerate((nan, 3.0, nan))]
    )
    summary = RunFacts(catalog.read(directory, outputs)).summary("x")
    assert (summary.best, summary.min, summary.max) == (3.0, 3.0, 3.0)
    assert math.isnan(summary.first)
    assert math.isnan(summary.last)


def test_best_goes_by_the_monitor_and_else_by_the_name(outputs):
    epochs = [epoch(0, gap=1.0, val__loss=1.0), epoch(1, gap=2.0, val__loss=2.0)]
    directory = file_run(outputs, "20260303-100000", epochs=epochs, monitor="gap", mode="min")
    of = RunFacts(catalog.read(directory, outputs))
    assert (of.summary("gap").best, of.summary("val/loss").best) == (1.0, 1.0)
    assert FACTS["best"](of) == 1.0


def test_every_fact_can_be_had_of_a_record_with_nothing_but_what_is_needed(outputs):
    directory = file_run(outputs, "20260303-100000", drop=OPTIONAL)
    of = RunFacts(catalog.read(directory, outputs))
    values = {name: fact(of) for name, fact in FACTS.items()}
    assert values["experiment"] is None
    assert values["steps"] == 0
    assert of.meaning(parse_name("tags.team")) is None


def test_a_damaged_record_is_named_and_the_others_are_found(outputs):
    file_run(outputs, "20260303-100000", monitor="x", versions=5)
    for drop in ("day", "name", "status", "started", "config", "attempts", "uid"):
        file_run(outputs, "20260304-100000", drop=(drop,))
    selection = Selection(outputs, "versions.torch = 2.13.0 or versions.python = 3")
    rows = list(selection.each(day.run_directories(outputs), lambda of: of.run.address))
    assert len(rows) == 3
    assert len(selection.complaints) == 8
    assert all("20260303" in text or "20260304" in text for text in selection.complaints)


def test_a_run_of_the_second_at_two_in_kolkata_is_found_on_the_second_from_any_time_zone(
    outputs, monkeypatch
):
    """C46: the day of a run is that of its directory."""
    file_run(outputs, "20260402-020000", started="2026-04-02T02:00:00+05:30")
    for zone in ("UTC", "Asia/Kolkata", "America/Los_Angeles"):
        monkeypatch.setenv("TZ", zone)
        assert found(outputs, "day = 20260402 and time = 02:00:00") == ["260402/02"]
        assert len(catalog.directories("20260402..20260402", outputs)) == 1


def test_missing_is_not_null(outputs):
    of = RunFacts(catalog.read(day.run_directories(outputs)[2], outputs))
    assert of.value(parse_name("config.model.dropout")) is MISSING
