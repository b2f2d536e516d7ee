"""The trend of a metric over days."""

import math

import pytest
from drawn import words
from filed_runs import epoch, file_run

from daypoint.base.errors import ConfigError
from daypoint.plots.trend import draw_trend
from daypoint.reading.trend import trend


@pytest.fixture
def outputs(tmp_path):
    outputs = tmp_path / "outputs"
    values = {"20260301-100000": 0.5, "20260301-110000": 0.9, "20260301-120000": 0.7, "20260303-100000": 0.6}
    for when, value in values.items():
        epochs = [
            epoch(0, val__accuracy=value, val__loss=1 - value),
            epoch(1, val__accuracy=0.1, val__loss=2.0),
        ]
        file_run(outputs, when, epochs=epochs)
    file_run(outputs, "20260302-100000", epochs=[epoch(0, val__accuracy=math.nan)])
    return outputs


def test_each_day_has_its_count_spread_and_best_run(outputs):
    first, third = trend(outputs, "val/accuracy").days
    assert (first.day, first.runs, first.min, first.median, first.max) == ("20260301", 3, 0.5, 0.7, 0.9)
    assert (first.best, first.run) == (0.9, "20260301/110000-000000")
    assert (third.day, third.runs) == ("20260303", 1)


def test_a_loss_is_best_when_it_is_small(outputs):
    found = trend(outputs, "val/loss", "20260301")
    assert found.mode == "min"
    assert found.days[0].run == "20260301/110000-000000"


def test_the_monitored_direction_decides(outputs):
    for hour, value in ((10, 1.0), (11, 2.0)):
        file_run(outputs, f"20260304-{hour}0000", epochs=[epoch(0, gap=value)], monitor="gap", mode="min")
    assert trend(outputs, "gap").days[0].best == 1.0


def test_of_two_equal_runs_the_later_is_best(outputs):
    file_run(outputs, "20260301-130000", epochs=[epoch(0, val__accuracy=0.9)])
    assert trend(outputs, "accuracy").days[0].run == "20260301/130000-000000"


def test_another_value_of_the_metric_can_be_asked_for(outputs):
    assert trend(outputs, "last(val/accuracy)").days[0].max == 0.1


def test_a_range_and_a_query_narrow(outputs):
    assert [day.day for day in trend(outputs, "accuracy", "20260302..").days] == ["20260303"]
    assert trend(outputs, "accuracy", where="time >= 12:00").days[0].runs == 1


def test_a_metric_that_no_run_has_is_refused(outputs):
    with pytest.raises(ConfigError, match="nearest are val/accuracy"):
        trend(outputs, "val/acuracy")


@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG"), ("a.SVG", b"<?xml"), ("a.pdf", b"%PDF")])
def test_a_trend_is_drawn_as_a_file(outputs, tmp_path, name, begin):
    found = trend(outputs, "val/accuracy")
    draw_trend(found.days, found.metric, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begin)


def test_a_picture_of_another_kind_is_refused(outputs, tmp_path):
    with pytest.raises(ConfigError, match=r"\.png, \.svg, \.pdf"):
        draw_trend(trend(outputs, "val/accuracy").days, "x", tmp_path / "a.gif")


def test_what_was_reproduced_is_not_measured_twice(outputs):
    reproduced = {"reproduces": {"address": "20260301/110000-000000"}}
    file_run(outputs, "20260301-130000", epochs=[epoch(0, val__accuracy=0.99)], **reproduced)
    file_run(outputs, "20260305-130000", epochs=[epoch(0, val__accuracy=0.99)], **reproduced)
    found = trend(outputs, "val/accuracy")
    assert (found.days[0].runs, found.days[0].best) == (3, 0.9)
    assert [day.day for day in found.days] == ["20260301", "20260303"]


def test_one_day_has_an_axis_of_days_and_no_entry_for_a_spread_that_is_not_there(outputs, tmp_path):
    found = trend(outputs, "val/accuracy", "20260303")
    draw_trend(found.days, found.metric, tmp_path / "a.svg")
    said = words(tmp_path / "a.svg")
    assert [text for text in said if text.startswith("20")] == ["2026-03-02", "2026-03-03", "2026-03-04"]
    assert "least to greatest" not in said
    found = trend(outputs, "val/accuracy", "20260301")
    draw_trend(found.days, found.metric, tmp_path / "a.svg")
    assert "least to greatest" in words(tmp_path / "a.svg")
