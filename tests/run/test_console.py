"""The bar of a run, on terminals of several widths."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from rich.console import Console

from daypoint.run.console import RunConsole

ERASED = re.compile(r"\r|\n|\x1b\[2K|\x1b\[1A")


@pytest.fixture
def terminal():
    """A RunConsole on a terminal of so many columns, and what was drawn there as lines."""

    def make(width):
        console = RunConsole()
        screen = io.StringIO()
        console._err = console._out = Console(
            file=screen, force_terminal=True, width=width, color_system=None
        )
        return console, lambda: [line for line in ERASED.split(screen.getvalue()) if line.strip()]

    return make


def recorder(steps, **latest):
    return SimpleNamespace(steps_in_epoch=steps, latest=latest)


def entry(steps, **metrics):
    return {"stats": {}, "metrics": metrics, "seconds": 0.2, "complete": True, "steps": steps}


def bars(lines):
    return [line for line in lines if "━" in line or "╸" in line]


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_every_part_keeps_its_place_and_the_line_fits(terminal, width):
    console, drawn = terminal(width)
    console.begin_epoch(14, 400, 23)
    for step, loss in enumerate([2.0, 0.00001234, -1234.5, 0.1], start=20):
        console._drawn_seconds = 0.0
        console.step(recorder(step, loss=loss, lr=0.1, grad_norm=2.5, long_name_of_a_metric=1.0))
    lines = bars(drawn())
    assert len(lines) >= 4
    assert all(len(line.rstrip()) <= width for line in lines)
    assert len({line.index("/23") for line in lines}) == 1
    assert len({line.index("loss") for line in lines[1:]}) == 1
    assert "epoch  15/400" in lines[0]
    assert "…" not in "".join(lines)
    assert ("long_name_of_a_metric 1" in lines[-1]) == (width == 160)


def test_the_last_batch_is_drawn_however_soon_it_comes(terminal):
    console, drawn = terminal(100)
    console.begin_epoch(0, 2, 3)
    for step in (1, 2, 3):
        console.step(recorder(step, loss=1.0))
    assert "3/3" in bars(drawn())[-1]


def test_the_bar_makes_way_for_the_line_of_its_epoch_and_shows_no_validation_of_the_one_before(terminal):
    console, drawn = terminal(100)
    console.begin_epoch(0, 2, 3)
    console.step(recorder(3, loss=1.0))
    console.end_epoch(entry(3, **{"val/loss": 0.5}))
    assert drawn()[-1].startswith("epoch 1/2  val/loss 0.5")
    console.begin_epoch(1, 2, 3)
    console.step(recorder(3, **{"loss": 1.0, "val/loss": 0.5}))
    assert "loss 1" in bars(drawn())[-1]
    assert "val/loss" not in bars(drawn())[-1]


def test_an_epoch_of_unknown_length_is_expected_to_be_as_long_as_the_one_before(terminal):
    console, drawn = terminal(100)
    console.begin_epoch(0, 2, None)
    console.step(recorder(1, loss=1.0))
    assert "1/?" in drawn()[-1]
    console.end_epoch(entry(4))
    console.begin_epoch(1, 2, None)
    console._drawn_seconds = 0.0
    console.step(recorder(2, loss=1.0))
    assert "2/4" in drawn()[-1]
    console._drawn_seconds = 0.0
    console.step(recorder(5, loss=1.0))
    assert "5/?" in drawn()[-1]


def test_wide_characters_take_the_room_that_they_take_and_none_moves_the_cursor(terminal):
    console, drawn = terminal(100)
    console.begin_epoch(0, 1, 20)
    console.step(
        recorder(20, **{"損失関数の値": 1.5, "精度の値": 0.5, "もう一つの長い名前": 2.0, "a\nb": 1.0})
    )
    assert "20/20 0:00:00" in drawn()[-1]
    assert cell_len(drawn()[-1].rstrip()) <= 100
    console.begin_epoch(0, 1, 20)
    console.step(recorder(20, **{"a\nb": 1.0}))
    assert "a\ufffdb 1" in drawn()[-1]


def test_a_metric_whose_name_reads_like_markup_is_a_name(terminal):
    console, drawn = terminal(100)
    console.begin_epoch(0, 1, 2)
    console.step(recorder(2, **{"mAP[/0.5]": 0.5}))
    assert "mAP[/0.5] 0.5" in drawn()[-1]
