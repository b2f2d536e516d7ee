"""Pictures of learning curves: what they show, what they say is missing, and that they are always the same."""

import math
import warnings

import numpy as np
import pytest
from drawn import load, million, words, written

from daypoint.base import files
from daypoint.base.errors import ConfigError
from daypoint.plots import canvas, curves, curves_figure

NAN, INF = math.nan, math.inf


def draw(tmp_path, values=(), metrics=("loss",), status="FINISHED", record=None, **options):
    """The words in the picture of a run with these losses; also draws it as PNG."""
    run = load(written(tmp_path, values, **(record or {})), status)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curves_figure.draw_curves([run], metrics, tmp_path / "a.png", **options)
        curves_figure.draw_curves([run], metrics, tmp_path / "a.svg", **options)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    return words(tmp_path / "a.svg")


def test_axes_title_and_legend_say_what_is_shown(tmp_path):
    said = draw(tmp_path, [3.0, 2.0, 1.0])
    for text in (
        "20260328/141502-123456  mlp-adamw",
        "loss",
        "step (batches done before this one)",
        "every batch",
    ):
        assert text in said


def test_an_epoch_has_a_mean_and_a_band(tmp_path):
    run = written(tmp_path, [3.0, 1.0])
    run.epoch(loss=[3.0, 1.0])
    curves_figure.draw_curves([load(run)], ["loss"], tmp_path / "a.svg")
    assert {"mean of the epoch", "least to greatest of the epoch"} <= set(words(tmp_path / "a.svg"))


def test_where_a_run_was_resumed_and_which_checkpoint_is_best_are_marked(tmp_path):
    run = written(tmp_path, [3.0, 2.0, 1.0])
    run.log_epoch(val=1.0)
    run.die()
    run.resume(2)
    run.log(loss=0.5)
    run.log_epoch(val=0.5)
    run.files.checkpoints.mkdir()
    files.write_atomic(run.files.pointer("best"), b'{"step": 3}')
    run = curves.load(run.files, run.record, address="a", status="FINISHED", metrics=["loss", "val"])
    curves_figure.draw_curves([run], ["loss", "val"], tmp_path / "a.svg")
    assert {"resumed", "best checkpoint"} <= set(words(tmp_path / "a.svg"))


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "no values yet"),
        ([NAN] * 5, "no value can be shown"),
        ([1.5], "every batch"),
        ([0.1] * 50, "every batch"),
        ([1.0, NAN, INF, -INF, 2.0], "loss: 1 NaN, 1 inf, 1 -inf (not drawn)"),
        ([1.0, 1e299, 1.7e308, 10**400], "loss: 2 inf (not drawn)"),
        ([1e-320, 1e-310], "every batch"),
        ([2**60, 2**60 + 2**10], "every batch"),
    ],
    ids=["empty", "only NaN", "one point", "constant", "non-finite", "huge", "tiny", "close"],
)
def test_odd_curves_are_drawn_and_the_picture_says_so(tmp_path, values, said, log):
    assert said in draw(tmp_path, values, log=log, smoothing=0.9)


def test_what_a_logarithm_cannot_show_is_counted(tmp_path):
    assert "loss: 2 not positive (not drawn)" in draw(tmp_path, [1.0, 0.0, -1.0, 10.0], log=True)
    assert "no value can be shown" in draw(tmp_path, [-1.0, -2.0], log=True)


def test_an_average_counts_what_a_logarithm_cannot_show(tmp_path, monkeypatch):
    lines = {}
    line = curves_figure._Panel._line

    def keep(self, label, x, y, style):
        lines[label] = y
        line(self, label, x, y, style)

    monkeypatch.setattr(curves_figure._Panel, "_line", keep)
    draw(tmp_path, [1.0, 0.0], log=True, smoothing=0.5)
    assert lines["moving average, weight 0.5"].tolist() == pytest.approx([1.0, 1 / 3])


@pytest.mark.parametrize("status", ["KILLED", "RUNNING"])
def test_a_run_that_is_not_finished_says_so(tmp_path, status):
    word = {"KILLED": "(killed)", "RUNNING": "(running)"}[status]
    assert any(word in text for text in draw(tmp_path, [1.0, 0.5], status=status))


@pytest.mark.parametrize(
    "name", ["$\\frac{1}{", "_hidden", "模型 🙂", "two\nlines\0", "x" * 500, "<script>--></script>"]
)
def test_any_name_can_be_drawn(tmp_path, name):
    draw(tmp_path, [1.0, 0.5], record={"name": name})
    run = load(written(tmp_path, [1.0], name=name))
    curves_figure.draw_curves([run, run], ["loss"], tmp_path / "b.svg")


def test_a_metric_that_one_of_two_runs_has_is_drawn(tmp_path):
    one, other = written(tmp_path, [1.0, 0.5]), written(tmp_path)
    curves_figure.draw_curves([load(one), load(other)], ["loss"], tmp_path / "a.svg")
    assert "every batch" in words(tmp_path / "a.svg")


def test_as_many_runs_as_there_may_be_have_each_their_own_line(tmp_path):
    runs = []
    for i in range(curves_figure.MOST_RUNS):
        run = written(tmp_path, [1.0 / (i + 1), 0.5 / (i + 1)], config={"optimizer": {"lr": i}})
        run.record["attempts"][0]["overrides"] = [f"optimizer.lr={i}"]
        runs.append(load(run))
    curves_figure.draw_curves(runs, ["loss"], tmp_path / "a.svg")
    said = {word.rpartition(" ")[2] for word in words(tmp_path / "a.svg")}
    assert {f"lr={i}" for i in range(curves_figure.MOST_RUNS)} <= said
    assert len(set(canvas.PALETTE)) * 2 == curves_figure.MOST_RUNS


def test_runs_of_several_days_name_the_first_and_the_last(tmp_path):
    runs = [load(written(tmp_path)) for _ in range(2)]
    runs[1].record = {**runs[1].record, "day": "20260401"}
    assert curves.title(runs) == "20260328 to 20260401  2 runs"


def test_a_million_points_are_drawn_as_a_few_thousand_and_a_single_spike_is_seen(tmp_path):
    from matplotlib.image import imread

    spike = 314_159
    curves_figure.draw_curves([million(tmp_path, spike)], ["loss"], tmp_path / "a.png")
    curves_figure.draw_curves([million(tmp_path, spike)], ["loss"], tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size < 500_000
    pixels = imread(tmp_path / "a.png")[:, :, :3]
    colored = pixels.max(axis=2) - pixels.min(axis=2) > 0.2
    upper = np.flatnonzero(colored[60 : pixels.shape[0] // 3].any(axis=0))
    assert 0 < len(upper) < 6  # one narrow line, and nothing else so high up
    assert abs(upper.mean() / pixels.shape[1] - 0.345) < 0.05


@pytest.mark.parametrize("kind", canvas.FORMATS)
def test_the_same_curves_give_the_same_bytes_whatever_the_users_settings(tmp_path, kind):
    import matplotlib

    run = load(written(tmp_path, [1.0, 0.5, NAN, 0.2]))
    curves_figure.draw_curves([run], ["loss"], tmp_path / f"a.{kind}")
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.grid": True, "savefig.dpi": 30, "font.size": 30}):
        curves_figure.draw_curves([run], ["loss"], tmp_path / f"b.{kind}")
        assert matplotlib.rcParams["lines.linewidth"] == 9
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_no_time_and_no_version_is_in_a_picture(tmp_path):
    draw(tmp_path, [1.0])
    assert b"tEXt" not in (tmp_path / "a.png").read_bytes()
    assert b"Software" not in (tmp_path / "a.png").read_bytes()
    assert "dc:date" not in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"ends in \.png, \.svg, \.pdf, found '\.gif'"):
        curves_figure.draw_curves([load(written(tmp_path))], ["loss"], tmp_path / "a.gif")


def test_what_is_logged_once_an_epoch_looks_different_from_the_mean_of_one(tmp_path, monkeypatch):
    seen = {}
    line = curves_figure._Panel._line

    def keep(self, label, x, y, style):
        seen[label] = style.get("marker")
        line(self, label, x, y, style)

    monkeypatch.setattr(curves_figure._Panel, "_line", keep)
    run = written(tmp_path, [3.0, 1.0])
    run.epoch(loss=[3.0, 1.0])
    run.log_epoch(val=0.5)
    found = curves.load(run.files, run.record, address="x", status="FINISHED", metrics=["loss", "val"])
    curves_figure.draw_curves([found], ["loss", "val"], tmp_path / "a.png")
    assert seen["mean of the epoch"] != seen["once an epoch"]
