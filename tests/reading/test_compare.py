"""Runs side by side: what differs, and what they measured."""

import json
import math

import pytest
from filed_runs import epoch, file_run

from daypoint.base.errors import AddressError
from daypoint.base.tables import as_html, as_json_object
from daypoint.reading.compare import MOST, compare
from daypoint.reading.query import MISSING, same


@pytest.fixture
def outputs(tmp_path):
    outputs = tmp_path / "outputs"
    file_run(
        outputs,
        "20260301-100000",
        config={"lr": 1e-5, "kind": None, "seed": 1, "amp": True},
        epochs=[epoch(0, val__accuracy=0.9), epoch(1, val__accuracy=0.8)],
    )
    file_run(
        outputs,
        "20260302-100000",
        config={"lr": 0.00001, "kind": "None", "seed": 1, "amp": 1, "extra": "<b>"},
        epochs=[epoch(0, val__accuracy=math.nan)],
        git={"commit": "d" * 40, "branch": "main", "dirty": True, "diff_sha256": "e" * 64},
        versions={"torch": "2.13.0", "numpy": "2"},
        data={"name": "digits", "rows": 1797, "fingerprint": "0" * 32},
    )
    return outputs


def section(found, name):
    return found.sections.get(name, {})


def test_only_what_differs_in_the_config_is_shown_compared_by_type(outputs):
    """C68: null is not 'None', 1e-5 is 0.00001, true is not 1."""
    rows = section(compare(outputs, ["20260301", "20260302"]), "config")
    assert rows == {"kind": [None, "None"], "amp": [True, 1], "extra": [MISSING, "<b>"]}


def test_code_versions_and_data_are_shown_where_they_differ(outputs):
    found = compare(outputs, ["20260301", "20260302"])
    assert set(section(found, "code")) == {"commit", "uncommitted changes", "their SHA-256"}
    assert section(found, "versions") == {"numpy": [MISSING, "2"]}
    assert section(found, "data") == {"fingerprint": ["f" * 32, "0" * 32]}


def test_metrics_are_shown_best_and_last_also_where_they_are_equal(outputs):
    rows = section(compare(outputs, ["20260301", "20260302"]), "metrics")
    assert rows["best(val/accuracy)"][0] == 0.9
    assert rows["val/accuracy"][0] == 0.8
    assert math.isnan(rows["val/accuracy"][1])
    assert rows["seconds"] == [60.0, 60.0]


def test_a_best_value_that_is_the_last_one_in_every_run_is_not_shown_twice(tmp_path):
    for hour, last in ((10, 0.2), (11, 0.3)):
        epochs = [epoch(0, lr=0.1, val__loss=0.25), epoch(1, lr=0.1, val__loss=last)]
        file_run(tmp_path, f"20260301-{hour}0000", epochs=epochs, monitor="val/loss", mode="min")
    found = compare(tmp_path, ["20260301"])
    (table,) = (table for name, table in found.tables() if name == "metrics")
    assert [row[0] for row in table.rows][:3] == ["best(val/loss)", "val/loss", "lr"]
    assert "best(lr)" in section(found, "metrics")  # as data


def test_null_and_not_there_look_different(outputs):
    found = compare(outputs, ["20260301", "20260302"])
    (table,) = (table for name, table in found.tables() if name == "config")
    assert ["kind", "null", "None"] in table.rows
    assert ["extra", None, "<b>"] in table.rows


def test_json_leaves_out_what_a_run_has_not(outputs):
    found = json.loads(as_json_object(compare(outputs, ["20260301", "20260302"]).to_dict()))
    assert found["config"]["extra"] == {"20260302/100000-000000": "<b>"}
    assert found["metrics"]["val/accuracy"]["20260302/100000-000000"] == "NaN"


def test_html_is_escaped(outputs):
    page = as_html("x", compare(outputs, ["20260301", "20260302"]).tables())
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_a_day_is_its_runs_and_a_run_named_twice_is_one_column(outputs):
    file_run(outputs, "20260301-110000")
    found = compare(outputs, ["20260301", "20260301/10"])
    assert found.runs == ["20260301/100000-000000", "20260301/110000-000000"]


def test_of_too_many_runs_the_newest_are_compared_but_those_that_are_named_always(outputs):
    for minute in range(MOST):
        file_run(outputs, f"20260303-10{minute:02}00", status="FAILED" if minute else "FINISHED")
    found = compare(outputs, ["20260301..20260303"])
    assert found.runs[0] == "20260303/100000-000000"
    assert found.remark == "the newest 12 of 14 runs; choose with --where, or name them"
    found = compare(outputs, ["20260301/10", "20260303"])
    assert found.runs[:2] == ["20260301/100000-000000", "20260303/100100-000000"]
    with pytest.raises(AddressError, match="at most 12 runs, found 13 that are named"):
        compare(outputs, ["20260301/10", *(f"20260303/10{minute:02}" for minute in range(MOST))])
    assert len(compare(outputs, ["20260301..20260303"], where="status=finished").runs) == 3


def test_one_run_is_not_enough(outputs):
    with pytest.raises(AddressError, match="at least two runs, found 1"):
        compare(outputs, ["20260301"])


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (1, 1.0, True),
        (True, 1, False),
        (None, "None", False),
        (0.1, "0.1", False),
        (math.nan, math.nan, True),
        ([1, [2]], [1, [2.0]], True),
        ([1], [True], False),
    ],
)
def test_sameness(a, b, expected):
    assert same(a, b) is expected
