"""`daypoint plot`."""

import pytest
from command_line import run_cli
from filed_sweeps import manifest

from daypoint.base import day, files


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Stand in an empty directory."""
    where = tmp_path / "here"
    where.mkdir()
    monkeypatch.chdir(where)
    return where


def test_a_day_is_one_picture_named_after_it(outputs, here, capsys):
    code, out, _ = run_cli(capsys, "plot", "today")
    tag = day.run_directories(outputs)[0].parent.name
    assert (code, out) == (0, f"curves_{tag}.png\n")
    assert (here / f"curves_{tag}.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_named_after_its_time(outputs, capsys):
    run = day.run_directories(outputs)[0]
    code, out, _ = run_cli(capsys, "plot", str(run))
    assert (code, out) == (0, f"curves_{run.parent.name}-{run.name[:6]}.png\n")


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "html"])
def test_the_ending_says_what_is_written(outputs, here, capsys, ending):
    code, out, err = run_cli(
        capsys,
        "plot",
        "last",
        "-m",
        "loss",
        "-m",
        "val/loss",
        "-o",
        f"a.{ending}",
        "--log",
        "--smooth",
        "0.9",
    )
    assert (code, out, err) == (0, f"a.{ending}\n", "")
    assert (
        (here / f"a.{ending}")
        .read_bytes()
        .startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "html": b"<!doc"}[ending])
    )


def test_a_metric_that_there_is_not_is_one_message_with_the_nearest(outputs, capsys):
    code, _, err = run_cli(capsys, "plot", "last", "-m", "val/los")
    assert code == 1
    assert err.startswith("error: metric val/los: expected one that was logged")
    assert "val/loss" in err


def test_a_run_that_lacks_a_metric_of_the_others_is_named(outputs, capsys):
    code, _, err = run_cli(capsys, "plot", "today", "-m", "val/loss")
    assert code == 0
    assert err.startswith("warning: ")
    assert "has no val/loss" in err


@pytest.mark.parametrize(
    "arguments", [["-o", "a.gif"], ["-o", "no/where/a.png"], ["--smooth", "1"], ["--smooth", "-1"]]
)
def test_what_cannot_be_meant_is_a_wrong_command_line(outputs, capsys, arguments):
    code, _, err = run_cli(capsys, "plot", "last", *arguments)
    assert code == 2
    assert "expected" in err or "there is no directory" in err


@pytest.mark.parametrize("name", ["a.png", "a.html"])
def test_a_file_that_cannot_be_written_is_one_message(outputs, here, capsys, name):
    (here / name).mkdir()
    code, _, err = run_cli(capsys, "plot", "last", "-o", name)
    assert code == 1
    assert err.startswith("error: ")
    assert f"{name}: cannot be written" in err


def test_of_too_many_runs_the_newest_are_drawn_and_it_is_said(outputs, capsys, monkeypatch):
    from daypoint.plots import curves_figure

    monkeypatch.setattr(curves_figure, "MOST_RUNS", 2)
    code, _, err = run_cli(capsys, "plot", "today")
    assert code == 0
    assert "the newest 2 of 3 runs; choose with --where, or name them" in err


def test_runs_that_are_named_one_by_one_are_never_left_out(outputs, capsys, monkeypatch):
    from daypoint.plots import curves_figure

    monkeypatch.setattr(curves_figure, "MOST_RUNS", 2)
    code, _, err = run_cli(capsys, "plot", *map(str, day.run_directories(outputs)))
    assert (code, err) == (1, "error: expected at most 2 runs, found 3 that are named; name fewer\n")


def test_runs_are_chosen_by_a_query_and_a_number(outputs, here, capsys):
    assert run_cli(capsys, "plot", "today", "--where", "status=failed")[0] == 0
    assert [path.name.count("-") for path in here.iterdir()] == [1]  # the name of a single run
    assert "the newest 1 of 3 runs" in run_cli(capsys, "plot", "today", "-n", "1")[2]
    code, _, err = run_cli(capsys, "plot", "today", "--where", "status=killed")
    assert (code, err) == (1, "error: today: found no run with status=killed to draw\n")


def test_a_run_that_is_named_twice_is_drawn_once(outputs, capsys):
    run = day.run_directories(outputs)[0]
    assert run_cli(capsys, "plot", str(run), f"{run.parent.name}/{run.name}")[1].count("-") == 1


def test_of_a_sweep_the_values_can_be_drawn(outputs, here, capsys):
    directory = outputs / "20260328" / "sweep-150233-654321"
    directory.mkdir(parents=True)
    files.write_atomic(day.sweep_file(directory), files.dumps(manifest({"lr": ["0.1", "0.2"]})))
    code, out, _ = run_cli(capsys, "plot", "20260328/sweep-1502", "--values")
    assert (code, out) == (0, "sweep_20260328-150233.png\n")
    assert (here / "sweep_20260328-150233.png").exists()


@pytest.mark.parametrize(
    ("addresses", "name"),
    [
        (["20260328/141502-123456"], "curves_20260328-141502.png"),
        (["20260328/sweep-150233-654321/3"], "curves_20260328-150233-3.png"),
        (["20260328/141502-123456", "20260328/151502-123456"], "curves_20260328.png"),
        (["20260328/141502-1", "20260330/151502-1"], "curves_20260328-20260330.png"),
        (["/data/outputs/20260328/141502-123456"], "curves_20260328-141502.png"),
        (["/some/where/else"], "curves_where-else.png"),
    ],
)
def test_pictures_are_named_after_what_they_show(addresses, name):
    assert day.picture_name("curves", addresses) == name
