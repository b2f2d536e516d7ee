"""MLflow's pages as the place to compare days, in a real browser on a real server."""

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import written_runs
from projects import clean_environment
from written_runs import WrittenRun, unused_port

from daypoint.base.errors import AddressError, StoreError
from daypoint.tracking import store, ui
from daypoint.tracking.sync import sync

# MLflow's use of SQLAlchemy, not ours.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A project with runs of two days in its store."""
    root = tmp_path_factory.mktemp("ui") / "project"
    (root / "mlruns").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    store.prepare(store.tracking_uri("sqlite:///mlruns/mlflow.db", root))
    directories = []
    with pytest.MonkeyPatch.context() as patch:
        for days, lr in ((0, 0.01), (0, 0.1), (1, 0.5)):
            patch.setattr(written_runs, "START", written_runs.START + timedelta(days=days))
            run = WrittenRun(root, config={"optimizer": {"lr": lr}, "model": {"width": 64}})
            for step in range(20):
                run.log(loss=lr + 1 / (step + 1), lr=lr)
            run.end()
            directories.append(run.directory)
    assert sync(directories).ok
    return root


def uri_of(root):
    return store.tracking_uri("sqlite:///mlruns/mlflow.db", root)


def test_a_day_is_a_filter_on_its_tag(root):
    page = ui.page(uri_of(root), ["20260328"])
    assert (
        page
        == "#/experiments/1/runs?workflowType=machine_learning&searchFilter=tags.date%20%3D%20%2220260328%22"
    )


def test_several_days_are_a_filter_on_their_runs(root):
    page = ui.page(uri_of(root), ["20260328", "20260329"])
    assert len(set(re.findall(r"%27([0-9a-f]{32})%27", page))) == 3


def test_a_day_without_runs_says_so(root):
    with pytest.raises(
        AddressError, match=r"20260101: MLflow has no run of that day; daypoint sync 20260101"
    ):
        ui.page(uri_of(root), ["20260101"])


def test_a_port_that_is_taken_is_one_message(root):
    import socket

    with socket.socket() as taken, pytest.raises(StoreError, match=r"try daypoint ui --port"):
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ui.serve(uri_of(root), root, taken.getsockname()[1], [], False)


@contextlib.contextmanager
def serving(root, *days):
    """`daypoint ui`, and the address that it points to."""
    port = unused_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "daypoint", "ui", *days, "--port", str(port)],
        cwd=root,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield next(line for line in process.stdout if line.startswith("MLflow: ")).split()[1]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stdout.close()


@pytest.mark.services
def test_ctrl_c_ends_the_server_and_all_of_its_processes(root):
    port = unused_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "daypoint", "ui", "--port", str(port)],
        cwd=root,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert any(line.startswith("MLflow: http") for line in process.stdout)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 0
    process.stdout.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.services
def test_the_server_says_nothing_but_what_daypoint_says_and_its_errors(root):
    port = unused_port()
    command = [sys.executable, "-m", "daypoint", "ui", "--port", str(port)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=root, env=clean_environment(), start_new_session=True, **streams)
    said = [process.stdout.readline(), process.stdout.readline()]
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert [line.split()[0] for line in said] == ["MLflow", "MLflow:"]
    assert (out, err) == ("", "")


def test_of_what_the_server_says_only_the_greeting_is_left_out(capsys):
    greeting = b"[MLflow] Security middleware enabled with default settings (localhost-only).\n"
    ui._pass_on(io.BytesIO(greeting + b"Traceback\nOSError: \xff disk full"))
    assert capsys.readouterr().err == "Traceback\nOSError: \ufffd disk full"


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium is not None, "install Debian's chromium"
    with playwright.sync_playwright() as driver:
        instance = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield instance
        instance.close()


@pytest.mark.browser
@pytest.mark.timeout(300)
def test_a_person_filters_a_day_compares_two_and_reads_a_curve(root, browser, tmp_path):
    pictures = Path(os.environ.get("DAYPOINT_SCREENSHOTS", tmp_path))
    page = browser.new_page(viewport={"width": 1500, "height": 900})
    page.set_default_timeout(60_000)
    with serving(root, "20260328") as address:
        page.goto(address)
        page.get_by_text("2 matching runs").wait_for()  # of three: the day's
        page.get_by_text("20260328-141502 mlp-adamw").first.wait_for()
        page.screenshot(path=pictures / "day.png")

        page.get_by_placeholder("metrics.rmse < 1").or_(page.get_by_role("textbox").first).first.fill("")
        page.keyboard.press("Enter")
        page.get_by_text("20260329-141502 mlp-adamw").first.wait_for()
        boxes = page.get_by_role("checkbox")
        boxes.first.check()  # all of them
        page.get_by_role("button", name="Compare").click()
        page.get_by_text("Comparing 3 Runs from 1 Experiment").wait_for()
        page.get_by_text("optimizer.lr").first.wait_for()
        page.screenshot(path=pictures / "compare.png")

        run_id = store.connect(uri_of(root)).search_runs(["1"], max_results=1)[0].info.run_id
        base = address.partition("#")[0]
        page.goto(f"{base}{store.run_url(uri_of(root), '1', run_id)}")
        page.get_by_text("optimizer.lr").first.wait_for()
        page.get_by_text("daypoint show 202603").wait_for()  # the note
        page.screenshot(path=pictures / "run.png")
        page.get_by_role("tab", name="Model metrics").click()
        page.get_by_text("loss", exact=True).first.wait_for()
        page.locator(".js-plotly-plot").first.wait_for()
        page.screenshot(path=pictures / "metrics.png")
    page.close()
