"""Runs and points as pandas tables."""

import math

import pandas as pd
import pytest
from filed_runs import epoch, file_run
from written_runs import WrittenRun

import daypoint
from daypoint.base.errors import AddressError, ConfigError, RunError


@pytest.fixture
def outputs(tmp_path):
    outputs = tmp_path / "outputs"
    file_run(
        outputs,
        "20260301-100000",
        config={"lr": 0.1, "layers": 2, "amp": True, "dropout": None, "betas": [0.9, 0.95], "kind": "None"},
        epochs=[epoch(0, batches={"loss": [2.0, 1.0]}, val__accuracy=0.9), epoch(1, val__accuracy=0.8)],
    )
    file_run(
        outputs,
        "20260302-100000",
        config={"lr": 1, "layers": 3, "amp": False, "dropout": 0.5, "only": 7},
        epochs=[epoch(0, val__accuracy=math.nan)],
        status="FAILED",
        tags={},
    )
    return outputs


def test_runs_have_one_row_each_oldest_first(outputs):
    table = daypoint.runs(outputs=outputs)
    assert table["address"].tolist() == ["20260301/100000-000000", "20260302/100000-000000"]
    assert table["status"].tolist() == ["FINISHED", "FAILED"]


def test_columns_have_real_types(outputs):
    """C68: nothing comes back as text that was a number, a boolean or null."""
    table = daypoint.runs(outputs=outputs)
    kinds = {name: str(table[name].dtype) for name in table}
    assert kinds["config.lr"] == "float64"
    assert kinds["config.layers"] == "int64"
    assert kinds["config.amp"] == "bool"
    assert kinds["config.only"] == "Int64"
    assert kinds["val/accuracy"] == "float64"
    assert kinds["steps"] == "int64"
    assert kinds["started"].endswith("UTC]")
    assert table["config.betas"][0] == [0.9, 0.95]
    assert pd.isna(table["config.dropout"][0])
    assert table["config.kind"][0] == "None"


def test_metrics_are_there_with_their_last_and_best_values(outputs):
    table = daypoint.runs(outputs=outputs)
    assert table["val/accuracy"][0] == 0.8
    assert table["best(val/accuracy)"][0] == 0.9
    assert math.isnan(table["val/accuracy"][1])
    assert math.isnan(table["loss"][1])


def test_every_column_can_be_asked_about_under_its_name(outputs):
    """A column name is the name in a query."""
    for name in daypoint.runs(outputs=outputs).columns:
        daypoint.runs(where=f"{name} = null or status = finished", outputs=outputs)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"since": "20260302"}, 1),
        ({"until": "2026-03-01"}, 1),
        ({"since": "20260301", "until": "20260302"}, 2),
        ({"since": pd.Timestamp("2026-03-02").date()}, 1),
        ({"since": "20260301..20260301"}, 1),
        ({"since": "20260301/10"}, 1),
        ({"since": "20270101"}, 0),
        ({"where": "lr > 0.5"}, 1),
    ],
)
def test_runs_can_be_narrowed(outputs, given, count):
    assert len(daypoint.runs(outputs=outputs, **given)) == count


def test_without_runs_the_columns_are_there_all_the_same(tmp_path):
    table = daypoint.runs(outputs=tmp_path)
    assert len(table) == 0
    assert {"address", "status", "started"} <= set(table)


def test_what_is_wrong_is_refused(outputs):
    with pytest.raises(AddressError, match="until: expected a day"):
        daypoint.runs(until="soon", outputs=outputs)
    with pytest.raises(ConfigError, match="nearest"):
        daypoint.runs(where="lx > 1", outputs=outputs)


def test_a_damaged_run_is_a_warning(outputs):
    (outputs / "20260301" / "100000-000000" / "run.json").write_text("{")
    with pytest.warns(UserWarning, match="100000-000000"):
        table = daypoint.runs(outputs=outputs)
    assert len(table) == 1


# ---------------------------------------------------------------- points


@pytest.fixture
def run(tmp_path):
    """Three steps, then a second attempt from the second step on, with an integer and a NaN."""
    run = WrittenRun(tmp_path)
    for i in range(3):
        run.log(loss=float(i), count=i)
    run.log_epoch(**{"val/loss": 0.5})
    run.die()
    run.resume(1)
    run.log(loss=math.nan, count=2**60)
    run.log_epoch(**{"val/loss": 0.25})
    run.end()
    return run


def points(run, *arguments):
    return daypoint.points(str(run.directory), *arguments)


def test_points_are_one_row_a_batch_with_redone_steps_once(run):
    table = points(run)
    assert table["step"].tolist() == [0, 1, 1]
    assert table["kind"].tolist() == ["batch", "batch", "epoch"]
    assert table["epoch"].tolist() == [0, 0, 0]
    assert str(table["time"].dtype).endswith("UTC]")
    assert table["val/loss"].tolist()[2] == 0.25


def test_integers_stay_exact(run):
    table = points(run)
    assert str(table["count"].dtype) == "Int64"
    assert table["count"].tolist()[:2] == [0, 2**60]


def test_metrics_can_be_chosen_and_only_their_rows_come(run):
    table = points(run, ["val/loss"])
    assert list(table) == ["step", "epoch", "time", "kind", "val/loss"]
    assert table["val/loss"].tolist() == [0.25]
    with pytest.raises(RunError, match="expected nothing, found loss, count, val/loss"):
        points(run, ["nothing"])


def test_points_of_no_run_are_refused(run):
    with pytest.raises(AddressError, match="names no run"):
        daypoint.points("20200101", outputs=run.directory)


def test_a_run_that_logged_nothing_has_no_rows(tmp_path):
    run = WrittenRun(tmp_path)
    run.end()
    assert len(points(run)) == 0
