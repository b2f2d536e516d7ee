"""The command line, against runs that were really made."""

import json
import re

import pytest

import daypoint
from daypoint import catalog, cli, day


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """An outputs directory with three runs of today: finished, failed, finished with a NaN."""
    outputs = tmp_path / "outputs"
    monkeypatch.setenv("DAYPOINT_OUTPUTS", str(outputs))
    monkeypatch.setenv("COLUMNS", "200")
    for name, value in (("first", 1.0), ("second", None), ("third", float("nan"))):
        cfg = {
            "lr": 0.1,
            "tracking": {"enabled": False, "outputs": str(outputs), "name": name, "on_nonfinite": "record"},
        }
        try:
            with daypoint.open_run(cfg, quiet=True, monitor="val/loss") as run:
                for _ in run.epochs(2):
                    run.log(loss=0.5)
                    if value is None:
                        raise ZeroDivisionError("on purpose")
                    run.log_epoch({"val/loss": value})
        except ZeroDivisionError:
            pass
    return outputs


def run_cli(capsys, *arguments):
    """(exit code, stdout, stderr) of `daypoint …`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["daypoint", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as exit_:
            code = exit_.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_ls_lists_the_runs_of_a_day_oldest_first(outputs, capsys):
    code, out, _ = run_cli(capsys, "ls", "today")
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[1:3] for line in lines[1:]] == [
        ["FINISHED", "first"],
        ["FAILED", "second"],
        ["FINISHED", "third"],
    ]
    assert "val/loss" in lines[0]
    assert "nan" in lines[3]


def test_ls_shows_the_newest_when_there_are_more_than_asked_for(outputs, capsys):
    _, out, _ = run_cli(capsys, "ls", "-n", "1")
    assert "third" in out
    assert "first" not in out
    assert "2 older runs not shown" in out


def test_ls_without_runs_says_what_makes_one(tmp_path, capsys):
    code, out, _ = run_cli(capsys, "ls", "--outputs", str(tmp_path))
    assert code == 0
    assert "no runs" in out
    assert "python train.py makes one" in out


@pytest.mark.parametrize("text", ["20261301", "whenever"])
def test_ls_of_what_is_no_day_is_one_message(outputs, capsys, text):
    code, _, err = run_cli(capsys, "ls", text)
    assert code == 1
    assert err.startswith("error: ")
    assert "expected a day such as 20260328" in err
    assert "Traceback" not in err


def test_a_damaged_run_is_named_and_the_others_are_listed(outputs, capsys):
    broken = day.run_directories(outputs)[0]
    (broken / "run.json").write_text("{")
    code, out, err = run_cli(capsys, "ls")
    assert code == 0
    assert str(broken) in err
    assert "third" in out


def test_show_tells_who_a_run_is_its_epochs_and_its_hyperparameters(outputs, capsys):
    run = day.run_directories(outputs)[0]
    code, out, _ = run_cli(capsys, "show", f"{run.parent.name}/{run.name}")
    assert code == 0
    for text in ("first", "FINISHED", str(run), "lr = 0.1", "val/loss"):
        assert text in out
    assert len(re.findall(r"^ +[12] +1 ", out, re.MULTILINE)) == 2


def test_show_of_a_failed_run_says_why(outputs, capsys):
    run = day.run_directories(outputs)[1]
    _, out, _ = run_cli(capsys, "show", str(run))
    assert "ZeroDivisionError: on purpose" in out


def test_a_run_is_found_by_its_uid(outputs, capsys):
    run = day.run_directories(outputs)[2]
    uid = json.loads((run / "run.json").read_text())["uid"]
    code, out, _ = run_cli(capsys, "show", uid)
    assert code == 0
    assert "third" in out


def test_an_address_of_several_runs_lists_them(outputs, capsys):
    code, _, err = run_cli(capsys, "show", "today")
    assert code == 1
    assert "expected one run, found 3" in err
    for name in ("first", "second", "third"):
        assert name in err


def test_an_address_of_nothing_says_which_days_there_are(outputs, capsys):
    code, _, err = run_cli(capsys, "show", "19990101")
    assert code == 1
    assert "it names no run" in err
    assert day.run_directories(outputs)[0].parent.name in err


def test_sync_wants_to_know_which_runs(outputs, capsys):
    for arguments in ((), ("today", "--all")):
        code, _, err = run_cli(capsys, "sync", *arguments)
        assert code == 2
        assert "--all" in err


def test_help_has_an_example_in_every_command(capsys):
    code, out, _ = run_cli(capsys, "--help")
    assert code == 0
    for command in ("ls", "show", "sync", "ui"):
        assert command in out
        _, text, _ = run_cli(capsys, command, "--help")
        assert "Example: daypoint" in text


def test_the_read_side_imports_neither_torch_nor_mlflow(project):
    script = (
        "import sys; sys.argv = ['daypoint', 'ls']\nfrom daypoint import cli\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'mlflow', 'pandas', 'hydra') if m in sys.modules])"
    )
    assert project.python("-c", script).stdout.splitlines()[-1] == "[]"


def test_a_run_whose_process_is_gone_is_not_shown_as_running(tmp_path, project):
    script = (
        "import daypoint, os\n"
        "with daypoint.open_run({'tracking': {'enabled': False}}, quiet=True) as run:\n"
        "    run.log(loss=1.0)\n    os.kill(os.getpid(), 9)\n"
    )
    project.python("-c", script, check=False)
    (directory,) = project.runs()
    assert json.loads((directory / "run.json").read_text())["status"] == "RUNNING"
    assert catalog.read(directory, project.outputs).status == "KILLED"
