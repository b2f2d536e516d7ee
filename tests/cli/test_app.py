"""The command line, against runs that were really made."""

import json
import re
from datetime import UTC, datetime

import pytest
from command_line import run_cli
from filed_runs import epoch, file_run

from daypoint.base import day
from daypoint.record import catalog


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


@pytest.mark.parametrize("command", [("ls", "today"), ("compare", "today")])
def test_in_a_terminal_no_line_is_wider_than_it(tmp_path, monkeypatch, capsys, command):
    monkeypatch.setenv("DAYPOINT_OUTPUTS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    when = datetime.now(UTC)
    for second in range(5):
        config = {"model": {f"a_long_name_{i}": f"{'value' * 12}{second}" for i in range(20)}}
        file_run(tmp_path, f"{day.parse_day('today')}-{when:%H%M}{second:02}", config=config)
    code, out, _ = run_cli(capsys, *command)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert command[0] == "compare" or re.search(r"^vary too: .+ … and \d+ more: --columns$", out, re.M)


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
        "import sys; sys.argv = ['daypoint', 'ls']\nfrom daypoint.cli import app as cli\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'mlflow', 'pandas', 'hydra') if m in sys.modules])"
    )
    assert project.python("-c", script, cold=True).stdout.splitlines()[-1] == "[]"


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


# ---------------------------------------------------------------- looking at many runs


@pytest.fixture
def filed(tmp_path, monkeypatch):
    """Runs on two days of March."""
    outputs = tmp_path / "filed"
    monkeypatch.setenv("DAYPOINT_OUTPUTS", str(outputs))
    for day_of_month, accuracy in ((1, 0.5), (1, 0.9), (2, 0.7)):
        file_run(
            outputs,
            f"2026030{day_of_month}-1{int(accuracy * 10)}0000",
            config={"optimizer": {"lr": round(accuracy / 10, 3)}},
            epochs=[epoch(0, val__accuracy=accuracy)],
        )
    return outputs


def test_ls_takes_a_query_a_range_and_an_order(filed, capsys):
    code, out, _ = run_cli(capsys, "ls", "20260301..", "--where", "lr>=0.07", "--sort=-best", "-n", "5")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        "20260301/190000-000000",
        "20260302/170000-000000",
    ]


def test_ls_gives_csv_and_json_of_all_runs(filed, capsys):
    _, out, err = run_cli(capsys, "ls", "--csv", "--columns", "day, val/accuracy")
    assert out == "day,val/accuracy\n20260301,0.5\n20260301,0.9\n20260302,0.7\n"
    assert err == ""
    _, out, _ = run_cli(capsys, "ls", "--json")
    assert [row["best"] for row in json.loads(out)] == [0.5, 0.9, 0.7]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("ls", "--where", "lr >"), 2, "^"),
        (("ls", "--where", "lx > 0"), 1, "nearest are optimizer.lr"),
        (("ls", "--json", "--csv"), 2, "expected one of --json, --csv"),
        (("ls", "--json", "--columns", "lr"), 2, "--columns"),
        (("ls", "--sort", "("), 1, "expected a name"),
        (("ls", "20260328..20260301"), 1, "the earlier day first"),
        (("ls", "x" * 5000), 1, "it names no run"),
        (("ls", "~nosuchuser/x"), 1, "it names no run"),
        (("show", "~nosuchuser"), 1, "it names no run"),
        (("verify", "a\0b"), 1, "it names no run"),
        (("trend", "nothing"), 1, "expected a fact"),
        (("trend", "val/accuracy", "-o", "x.gif"), 1, ".png, .svg, .pdf"),
        (("compare", "20260302"), 1, "at least two runs"),
        (("compare", "20260301", "--html", "/nowhere/x.html"), 1, "cannot be written"),
        (("nonsense",), 2, "No such command"),
    ],
)
def test_what_is_wrong_is_one_message_and_the_right_exit_code(filed, capsys, arguments, code, message):
    found, out, err = run_cli(capsys, *arguments)
    assert found == code
    assert message in err
    assert len(err) < 1500
    assert "Traceback" not in err + out


def test_the_number_of_runs_is_spelt_right(filed, capsys):
    _, out, _ = run_cli(capsys, "ls", "-n", "2")
    assert "1 older run not shown" in out
    _, out, _ = run_cli(capsys, "ls", "-n", "1")
    assert "2 older runs not shown" in out


def test_a_day_without_runs_says_so(filed, capsys):
    code, out, _ = run_cli(capsys, "ls", "20260303", "--where", "status=finished")
    assert code == 0
    assert "no runs on 20260303 with status=finished" in out


def test_trend_shows_each_day_and_draws_it(filed, capsys, tmp_path):
    _, out, _ = run_cli(capsys, "trend", "val/accuracy", "-o", str(tmp_path / "a.svg"))
    lines = out.splitlines()
    assert lines[0] == "best(val/accuracy), max is best"
    assert lines[2].split() == ["20260301", "2", "0.5", "0.7", "0.9", "0.9", "20260301/190000-000000"]
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    _, out, _ = run_cli(capsys, "trend", "val/accuracy", "--json")
    assert json.loads(out)[1]["best"] == 0.7


def test_compare_shows_what_differs_and_writes_a_page(filed, capsys, tmp_path):
    _, out, _ = run_cli(capsys, "compare", "20260301", "20260302", "--where", "best>0.6")
    assert "optimizer.lr" in out
    assert "0.09" in out
    _, out, _ = run_cli(capsys, "compare", "20260301", "--csv")
    assert out.startswith(
        "section,key,20260301/150000-000000,20260301/190000-000000\nconfig,optimizer.lr,0.05,0.09\n"
    )
    page = tmp_path / "page.html"
    run_cli(capsys, "compare", "20260301", "--html", str(page))
    assert "0.09" in page.read_text()


def test_a_terminal_without_unicode_and_a_pipe_get_plain_text(project):
    """LANG=C: no crash, no colours."""
    file_run(project.outputs, "20260301-100000", config={"who": "Zoë–日本"}, epochs=[epoch(0, x=1.0)])
    file_run(project.outputs, "20260301-110000", config={"who": "b"}, name="naïve …", monitor=None)
    environment = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for arguments in (
        ("ls",),
        ("show", "20260301/10"),
        ("compare", "20260301"),
        ("ls", "--csv"),
        ("ls", "--help"),
    ):
        done = project.daypoint(*arguments, **environment)
        assert "\x1b" not in done.stdout
        assert done.stdout.isascii() or "--help" in arguments  # typer's own stream


def test_version_is_that_of_the_package(capsys):
    from importlib.metadata import version

    assert run_cli(capsys, "--version")[:2] == (0, f"daypoint {version('daypoint')}\n")


def test_every_command_has_an_example_and_the_exit_codes_are_told(capsys):
    _, out, _ = run_cli(capsys, "--help")
    assert "Exit codes: 0" in out
    commands = re.findall(r"^  ([a-z]+) {2,}", out.partition("Commands:")[2], re.MULTILINE)
    assert {"ls", "show", "compare", "trend", "verify", "sync", "ui"} <= set(commands)
    for command in commands:
        assert f"Example: daypoint {command}" in run_cli(capsys, command, "--help")[1]


def test_the_shell_can_complete_commands(project):
    done = project.daypoint(
        _DAYPOINT_COMPLETE="complete_bash", COMP_WORDS="daypoint tr", COMP_CWORD="1", check=False
    )
    assert done.stdout.split() == ["trend"]


def test_the_shell_can_complete_addresses(filed, monkeypatch):
    from daypoint.cli.options import complete_address

    assert complete_address("2026") == ["20260301", "20260302"]
    assert complete_address("l") == ["last"]
    assert complete_address("2026-03-01/19") == ["2026-03-01/190000-000000"]
    assert complete_address("nonsense/") == []


def test_reading_commands_import_nothing_heavy(project):
    file_run(project.outputs, "20260301-100000", epochs=[epoch(0, x=1.0)])
    file_run(project.outputs, "20260301-110000", epochs=[epoch(0, x=2.0)])
    for arguments in (["ls"], ["trend", "x"], ["compare", "20260301"], ["show", "last"]):
        script = (
            f"import sys; sys.argv = ['daypoint', *{arguments}]\nfrom daypoint.cli import app as cli\n"
            "try: cli.main()\nexcept SystemExit: pass\n"
            "heavy = ('torch', 'mlflow', 'pandas', 'numpy', 'hydra', 'omegaconf', 'matplotlib', 'rich')\n"
            "print([m for m in heavy if m in sys.modules])"
        )
        assert project.python("-c", script, cold=True).stdout.splitlines()[-1] == "[]"
