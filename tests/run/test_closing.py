"""The closing words of a run: what it came to, and the commands worth typing next."""

import contextlib
import re
import signal

import pytest
import torch

import daypoint
from daypoint.tracking import store

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
MODEL = torch.nn.Linear(2, 1)


@pytest.fixture
def cfg(root, monkeypatch):
    monkeypatch.chdir(root)
    return {"tracking": {"enabled": False, "outputs": str(root / "outputs")}}


def said(capsys):
    """The rows by name, and the commands in order."""
    text = capsys.readouterr().out
    rows, _, commands = text.partition("\nnext\n")
    return dict(re.findall(r"^(\w+) {2,}(.+)$", rows, re.M)), [
        line.split("#")[0].strip() for line in commands.splitlines()
    ]


def train(cfg, ending=lambda: None, *, saves=True, restores=False, **options):
    with daypoint.open_run(cfg, **options) as run:
        if restores:
            run.restore(model=MODEL)
        for _ in range(3):
            run.log(loss=1.0)
        if saves:
            run.save(model=MODEL)
        ending()
        run.log(loss=1.0)
    return run


def fail():
    raise ValueError("no")


@pytest.mark.parametrize("restores", [True, False])
def test_ctrl_c_and_signals_are_said_in_the_status_and_are_no_error(cfg, capsys, restores):
    for number, name, kind in [
        (signal.SIGINT, "Ctrl-C", KeyboardInterrupt),
        (signal.SIGTERM, "SIGTERM", SystemExit),
    ]:
        with pytest.raises(kind):
            train(cfg, lambda number=number: signal.raise_signal(number), restores=restores)
        rows, _ = said(capsys)
        assert re.fullmatch(rf"KILLED by {name}, [34] steps in \d+\.\d s", rows["status"])
        assert "error" not in rows


def test_an_exception_is_an_error_in_a_row_of_its_own(cfg, capsys):
    with pytest.raises(ValueError, match="no"):
        train(cfg, fail)
    rows, _ = said(capsys)
    assert rows["status"].startswith("FAILED, 3 steps")
    assert rows["error"] == "ValueError: no"


def test_a_script_that_restores_is_told_first_how_to_go_on(cfg, capsys):
    with pytest.raises(ValueError, match="no"):
        train(cfg, fail, restores=True)
    rows, commands = said(capsys)
    assert commands[0] == f'daypoint.open_run(..., resume="{rows["run"].partition("outputs/")[2]}")'


@pytest.mark.parametrize(
    ("ending", "options"),
    [(lambda: None, {"restores": True}), (fail, {"restores": True, "saves": False}), (fail, {})],
    ids=["finished", "no checkpoint", "cannot restore"],
)
def test_a_run_that_cannot_or_need_not_go_on_is_not_told_how(cfg, capsys, ending, options):
    with contextlib.suppress(ValueError):
        train(cfg, ending, **options)
    _, commands = said(capsys)
    assert commands[0].startswith("daypoint show")


def test_the_steps_of_a_resumed_attempt_are_told_from_those_of_the_run(cfg, capsys):
    train(cfg, restores=True)
    assert re.fullmatch(r"FINISHED, 4 steps in \d+\.\d s", said(capsys)[0]["status"])
    train(cfg, restores=True, resume="last")
    assert re.fullmatch(
        r"FINISHED, 7 steps, 4 of them in this attempt, in \d+\.\d s", said(capsys)[0]["status"]
    )


@pytest.mark.parametrize(
    ("data", "command"),
    [(None, "daypoint ui"), ({"path": "x.csv"}, "daypoint ui"), ({"input_shape": [2]}, "daypoint package")],
)
def test_packaging_is_recommended_only_where_it_can_work(cfg, root, capsys, data, command):
    tracking = {**cfg["tracking"], "enabled": True, "uri": store.tracking_uri(None, root)}
    more = {} if data is None else {"data": data}
    train({"model": {"_target_": "torch.nn.Linear"}, **more, "tracking": tracking})
    assert said(capsys)[1][-1].startswith(command)


APP = """
import hydra, torch, daypoint
daypoint.register_configs()
@hydra.main(version_base="1.3", config_path=None, config_name="daypoint")
def main(cfg):
    cfg = daypoint.resumed(cfg)
    model = torch.nn.Linear(2, 1)
    with daypoint.open_run(cfg) as run:
        run.restore(model=model)
        run.log(loss=1.0)
        run.save(model=model)
        raise ValueError("no")
main()
"""


@pytest.mark.parametrize(
    ("arguments", "command"),
    [(["my app.py"], "python 'my app.py'"), (["-m", "package.app"], "python -m package.app")],
    ids=["script", "module"],
)
def test_a_hydra_app_is_named_as_it_was_started(project, arguments, command):
    (project.root / "package").mkdir()
    for name in ("my app.py", "package/app.py"):
        (project.root / name).write_text(APP)
    given = ["+resume=null", "+tracking.enabled=false"]
    done = project.python(*arguments, *given, check=False)
    (run,) = project.runs()
    address = f"{run.parent.name}/{run.name}"
    assert f"next\n  {command} resume={address} " in done.stdout


def test_ctrl_c_in_a_script_without_hydra_is_pythons_own(project):
    script = "import daypoint, signal\nwith daypoint.open_run({'tracking': {'enabled': False}}) as run:\n    signal.raise_signal(signal.SIGINT)\n"
    done = project.python("-c", script, check=False)
    assert done.returncode == -signal.SIGINT
    assert "KILLED by Ctrl-C" in done.stdout
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
