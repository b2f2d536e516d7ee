"""Days, claims, names and addresses."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from daypoint.base import day
from daypoint.base.errors import AddressError, ConfigError, RunError

MOMENT = datetime(2026, 3, 28, 14, 15, 2, 123456, tzinfo=UTC)


def make_run(directory):
    directory.mkdir(parents=True)
    (directory / "run.json").write_text("{}")
    return directory


@pytest.mark.parametrize("text", ["20260328", "2026-03-28", "today"])
def test_a_day_can_be_written_in_several_ways(text):
    assert day.parse_day(text, today=date(2026, 3, 28)) == "20260328"


def test_yesterday_crosses_the_month():
    assert day.parse_day("yesterday", today=date(2026, 3, 1)) == "20260228"


@pytest.mark.parametrize(
    "text", ["2024-13-01", "20240230", "2024-0301", "tomorrow", "", "202403011", "²0240301"]
)
def test_what_is_no_day_is_refused(text):
    with pytest.raises(AddressError, match="expected a day such as 20260328"):
        day.parse_day(text)


def test_an_unknown_time_zone_is_a_config_error():
    with pytest.raises(ConfigError, match=r"tracking\.timezone.*Europe/Berlin.*'Mars/Base'"):
        day.zone("Mars/Base")


@pytest.mark.parametrize("name", ["../etc/passwd", "/etc/localtime", ""])
def test_a_time_zone_is_a_name_and_no_path(name):
    with pytest.raises(ConfigError):
        day.zone(name)


def test_the_day_is_that_of_the_configured_zone():
    moment = datetime(2026, 1, 1, 20, 30, tzinfo=UTC)
    assert day.tag(moment.astimezone(day.zone("Asia/Kolkata"))) == "20260102"
    assert day.tag(moment.astimezone(day.zone("UTC"))) == "20260101"


def test_now_is_aware_of_its_zone():
    assert day.now("Asia/Kolkata").utcoffset() == timedelta(hours=5, minutes=30)
    assert day.now("local").utcoffset() is not None


@pytest.fixture
def machine_in_kolkata(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("machine_in_kolkata")
def test_the_local_day_is_that_of_the_machine_and_not_of_utc():
    evening = datetime(2026, 1, 1, 20, 30, tzinfo=UTC)
    assert day.tag(evening.astimezone(day.zone("local"))) == "20260102"
    assert day.now().utcoffset() == timedelta(hours=5, minutes=30)


def test_a_claim_makes_the_dated_directory(tmp_path):
    assert day.claim(tmp_path, MOMENT) == tmp_path / "20260328" / "141502-123456"
    assert (tmp_path / "20260328" / "141502-123456").is_dir()


def test_a_second_claim_of_the_same_instant_gets_the_next_name(tmp_path):
    names = [day.claim(tmp_path, MOMENT).name for _ in range(3)]
    assert names == ["141502-123456", "141502-123457", "141502-123458"]


def test_a_claim_just_before_midnight_stays_in_its_day(tmp_path):
    last = MOMENT.replace(hour=23, minute=59, second=59, microsecond=999999)
    claimed = [day.claim(tmp_path, last) for _ in range(3)]
    assert len(set(claimed)) == 3
    assert {path.parent.name for path in claimed} == {"20260328"}


def test_the_hour_that_daylight_saving_repeats_gives_two_directories(tmp_path):
    berlin = ZoneInfo("Europe/Berlin")
    first = datetime(2026, 10, 25, 2, 30, 0, 5, tzinfo=berlin)
    again = first.replace(fold=1)
    assert first.utcoffset() != again.utcoffset()
    assert day.claim(tmp_path, first) != day.claim(tmp_path, again)


def _claim(outputs):
    return str(day.claim(outputs, MOMENT))


def test_two_hundred_claims_of_one_instant_get_two_hundred_directories(tmp_path):
    with multiprocessing.get_context("fork").Pool(16) as pool:
        claimed = pool.map(_claim, [tmp_path] * 200, chunksize=1)
    assert len(set(claimed)) == 200
    assert len(os.listdir(tmp_path / "20260328")) == 200


def test_an_outputs_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "outputs").write_text("a file")
    with pytest.raises(RunError, match=r"outputs.*cannot make a run directory.*tracking\.outputs"):
        day.claim(tmp_path / "outputs", MOMENT)


def test_names_need_no_quoting_in_a_shell_or_an_override():
    files = day.RunFiles(directory=day.Path("/x"), day="20260328")
    checkpoint = day.CheckpointFiles(files.checkpoint(300), "20260328")
    paths = [
        files.run,
        files.config,
        files.journal,
        files.train_log,
        files.pointer("best"),
        checkpoint.weights,
    ]
    paths += [checkpoint.card, checkpoint.state, checkpoint.state_tensors]
    assert files.checkpoint(300).name == "step000300"
    for path in paths:
        assert not set(str(path)) & set("=,[]{}() '\"*?:<>|\\")


def test_runs_are_listed_oldest_first_and_job_10_after_job_2(tmp_path):
    base = tmp_path / "20260328"
    late = make_run(base / "150000-000000")
    early = make_run(base / "090000-000000")
    jobs = [make_run(base / "sweep-120000-000000" / str(n)) for n in (10, 2, 0)]
    (base / "160000-000000").mkdir()  # claimed, but no run was opened in it
    assert day.run_directories(tmp_path) == [early, jobs[2], jobs[1], jobs[0], late]


def test_the_runs_of_all_days_are_listed_by_day_and_nothing_else_in_outputs_is(tmp_path):
    days = [make_run(tmp_path / tag / "120000-000000") for tag in ("20260330", "20260328", "20260329")]
    make_run(tmp_path / "archive" / "120000-000000")
    (tmp_path / "20260327").write_text("a file")
    assert day.run_directories(tmp_path) == [days[1], days[2], days[0]]


def test_a_run_that_is_not_filed_under_a_day_is_called_by_its_path(tmp_path):
    for run in (tmp_path / "archive" / "1", tmp_path / "20260328", tmp_path.parent / "elsewhere"):
        assert day.address_of(run, tmp_path) == str(run)


def test_the_outputs_of_a_run_are_above_its_day_and_unknown_elsewhere(tmp_path):
    base = tmp_path / "20260328"
    for run in (base / "141502-123456", base / "sweep-141600-000000" / "3"):
        assert day.outputs_of(run, "20260328") == tmp_path
    assert day.outputs_of(tmp_path / "elsewhere" / "1", "20260328") is None


def test_an_address_is_a_day_a_beginning_a_job_or_a_path(tmp_path):
    base = tmp_path / "20260328"
    run = make_run(base / "141502-123456")
    job = make_run(base / "sweep-141600-000000" / "3")
    assert day.matching("2026-03-28", tmp_path) == [run, job]
    assert day.matching("20260328/1415", tmp_path) == [run]
    assert day.matching("20260328/sweep-1416/3", tmp_path) == [job]
    assert day.matching("20260328/sweep-1416", tmp_path) == [job]
    assert day.matching(str(run), tmp_path) == [run]
    assert day.matching(day.address_of(job, tmp_path), tmp_path) == [job]
    assert day.matching("20260329", tmp_path) == []


def test_a_job_is_addressed_by_its_whole_number(tmp_path):
    jobs = [make_run(tmp_path / "20260328" / "sweep-141600-000000" / str(n)) for n in (3, 30)]
    assert day.matching("20260328/sweep-1416/3", tmp_path) == [jobs[0]]


def test_a_day_in_an_address_may_be_a_word(tmp_path):
    today, yesterday = date.today(), date.today() - timedelta(days=1)
    runs = [make_run(tmp_path / day.tag(of) / "141502-123456") for of in (today, yesterday)]
    if date.today() == today:  # else midnight has just passed
        assert day.matching("today/1415", tmp_path) == [runs[0]]
        assert day.matching("yesterday", tmp_path) == [runs[1]]


@pytest.mark.parametrize("address", ["../20260328", "20260328/../..", "20260328/", "/", "", "\0"])
def test_an_address_never_leads_outside(tmp_path, address):
    outside = make_run(tmp_path / "elsewhere" / "1")
    make_run(tmp_path / "outputs" / "20260328" / "141502-123456")
    with contextlib.suppress(AddressError, ValueError):
        assert outside not in day.matching(address, tmp_path / "outputs")


def test_the_project_is_the_nearest_directory_with_a_marker(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert day.project_root(inner) == tmp_path


def test_without_a_marker_the_project_is_where_the_search_began(tmp_path):
    assert day.project_root(tmp_path) == tmp_path or (
        tmp_path.parents and day.project_root(tmp_path) in tmp_path.parents
    )


def test_the_project_of_a_script_does_not_depend_on_the_working_directory(tmp_path):
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "pyproject.toml").touch()
    (project / "script.py").write_text("from daypoint.base import day; print(day.project_root())")
    done = subprocess.run(
        [sys.executable, "../project/script.py"], cwd=elsewhere, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(project)


def test_the_project_of_an_installed_command_is_where_it_is_typed(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    command = os.path.join(sys.prefix, "bin", "daypoint")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", command, raising=False)
    assert day.project_root() == tmp_path


@pytest.mark.parametrize("text", ["x" * 5000, "~nosuchuser/x", "a\0b"])
def test_what_can_be_no_path_names_no_run(tmp_path, text):
    assert day.as_path(text) is None
    assert day.matching(text, tmp_path) == []


def test_a_day_that_is_removed_meanwhile_is_made_again(tmp_path, monkeypatch):
    """A program that opened no run removes the empty day it has made, just when another claims in it."""
    made, usual = [], os.mkdir

    def mkdir(path, *rest):
        usual(path, *rest)
        made.append(path)
        if len(made) == 1:
            os.rmdir(path)

    (tmp_path / "outputs").mkdir()
    monkeypatch.setattr(os, "mkdir", mkdir)
    directory = day.claim(tmp_path / "outputs", day.now("UTC"))
    assert directory.is_dir()
    assert len(made) == 3


def test_a_path_to_a_sweep_or_a_day_names_its_runs(tmp_path):
    jobs = [tmp_path / "20260328" / "sweep-150233-654321" / name for name in ("2", "10")]
    alone, elsewhere = tmp_path / "20260328" / "141502-123456", tmp_path / "mine" / "0"
    for directory in (*jobs, alone, elsewhere):
        directory.mkdir(parents=True)
        (directory / "run.json").touch()
    for directory in (jobs[0].parent, elsewhere.parent):
        (directory / "sweep.json").touch()
    nowhere = tmp_path / "no outputs"
    assert day.matching(str(jobs[0].parent), nowhere) == jobs
    assert day.matching(str(elsewhere.parent), nowhere) == [elsewhere]
    assert day.matching(str(tmp_path / "20260328"), nowhere) == [alone, *jobs]
    assert day.matching(str(tmp_path / "20260329"), nowhere) == []


def test_addresses_are_shortened_as_far_as_they_tell_runs_apart():
    runs = ["20260328/141502-123456", "20260328/141503-1", "20260328/sweep-150233-654321/10", "/else/where"]
    assert day.shortened(runs)[0::2] == ["20260328/141502", "20260328/sweep-150233/10"]
    assert day.shortened(runs)[3] == "/else/where"
    alike = ["20260328/141502-123456", "20260328/141502-123457"]
    assert day.shortened(alike) == alike
