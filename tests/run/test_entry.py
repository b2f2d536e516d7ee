"""`open_run` without `with` says so; with it, it is the context manager that it was."""

import contextlib
import gc
import subprocess
import sys
import warnings

import pytest

import daypoint
from daypoint.base import day
from daypoint.base.errors import RunError
from daypoint.record import catalog


@pytest.fixture
def cfg(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return {"tracking": {"enabled": False, "outputs": "outputs"}}


def statuses(tmp_path):
    outputs = tmp_path / "outputs"
    return [catalog.read(path, outputs).status for path in day.run_directories(outputs)]


@pytest.mark.parametrize(
    "name", ["log", "log_epoch", "epochs", "save", "restore", "step", "directory", "config", "uid"]
)
def test_using_it_as_a_run_says_what_is_missing(cfg, tmp_path, name):
    run = daypoint.open_run(cfg)
    with pytest.raises(
        RunError, match=rf"expected `with daypoint.open_run\(...\) as run:`, found \.{name} on"
    ):
        getattr(run, name)
    assert statuses(tmp_path) == []


def test_a_name_that_no_run_has_is_an_attribute_error(cfg):
    entry = daypoint.open_run(cfg)
    assert not hasattr(entry, "canary")
    assert not hasattr(entry, "_repr_html_")
    with entry:
        pass


def test_one_that_is_never_entered_is_a_warning(cfg):
    with pytest.warns(RuntimeWarning, match="nothing is recorded: write `with daypoint.open_run"):
        daypoint.open_run(cfg)


@pytest.mark.parametrize("code", ["daypoint.open_run()", "run = daypoint.open_run()"])
def test_a_script_that_never_enters_it_is_warned_on_its_screen(tmp_path, code):
    done = subprocess.run(
        [sys.executable, "-c", f"import daypoint\n{code}\n"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "RuntimeWarning: daypoint.open_run was called and nothing is recorded" in done.stderr


def test_no_warning_when_it_is_entered(cfg):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with daypoint.open_run(cfg, quiet=True):
            pass
        gc.collect()


def test_an_exception_passes_with_the_place_where_it_was_raised(cfg, tmp_path):
    with pytest.raises(ValueError, match="no") as caught, daypoint.open_run(cfg, quiet=True):
        raise ValueError("no")
    assert caught.traceback[0].path.name == "test_entry.py"
    assert statuses(tmp_path) == ["FAILED"]


def test_a_stop_iteration_of_the_block_passes_unchanged(cfg):
    with pytest.raises(StopIteration), daypoint.open_run(cfg, quiet=True):
        raise StopIteration


def test_runs_can_be_nested_and_left_in_any_way(cfg, tmp_path):
    with contextlib.ExitStack() as held:
        outer = held.enter_context(daypoint.open_run(cfg, quiet=True))
        with daypoint.open_run(cfg, quiet=True) as inner:
            inner.log(loss=1.0)
        outer.log(loss=1.0)
    assert statuses(tmp_path) == ["FINISHED", "FINISHED"]


def test_a_block_that_is_given_up_ends_the_run_as_killed(cfg, tmp_path):
    def block():
        with daypoint.open_run(cfg, quiet=True) as run:
            yield run

    given_up = block()
    next(given_up)
    given_up.close()
    assert statuses(tmp_path) == ["KILLED"]


def test_an_entry_that_is_dropped_while_open_ends_the_run(cfg, tmp_path):
    entry = daypoint.open_run(cfg, quiet=True)
    entry.__enter__()
    del entry
    gc.collect()
    assert statuses(tmp_path) == ["KILLED"]


def test_as_a_decorator_each_call_is_a_run(cfg, tmp_path):
    @daypoint.open_run(cfg, quiet=True)
    def main(value):
        return value

    assert [main(1), main(2)] == [1, 2]
    assert statuses(tmp_path) == ["FINISHED", "FINISHED"]
