"""MLflow's own pages on the project's store, opened where the runs in question are.

MLflow 3.17 shows pages for language models unless its address says `workflowType=machine_learning`; ours say it. A day is a
filter on the tag `date`; several days are one on the ids of their runs, since MLflow's search of tags knows no OR.
One number: the server is ready after 4 s with one worker, after 11 to 16 with MLflow's default of four.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO
from urllib.parse import quote

from daypoint.base.errors import AddressError, StoreError
from daypoint.tracking import store

MOST_RUNS = 60
"""In a filter by ids, which stands in the address."""
READY_SECONDS = 60.0


def serve(uri: str, root: Path, port: int, days: Sequence[str], open_browser: bool) -> int:
    """Serve MLflow's pages until Ctrl-C; returns the exit code.

    Args:
        uri: the store, absolute; of a server only the page is opened.
        root: the project, for the place of artifacts.
        days: day tags to show; none shows everything.

    Raises:
        StoreError: the port is taken, or the server does not start.
        AddressError: MLflow has no run of these days.
    """
    if uri.startswith(("http://", "https://")):
        _point_to(uri + page(uri, days), open_browser)
        return 0
    _refuse_taken(port)
    store.prepare(uri)
    path = page(uri, days)
    # The server looks for uvicorn on PATH, which an environment that was not activated does not offer.
    scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": scripts, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment.setdefault("PYTHONWARNINGS", "ignore")  # of what MLflow is built on, for its makers
    arguments = [
        "--backend-store-uri",
        uri,
        "--registry-store-uri",
        uri,
        "--uvicorn-opts",
        "--log-level warning",
    ]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    if artifacts := store.artifact_root(uri, root):
        arguments += ["--default-artifact-root", artifacts]
    print(f"MLflow on {uri}, Ctrl-C ends it", flush=True)
    command = [sys.executable, "-m", "mlflow", "server", *arguments]
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    said = threading.Thread(target=_pass_on, args=(server.stderr,), daemon=True)
    said.start()

    def stop(number: int, _: FrameType | None) -> None:
        server.send_signal(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the server itself, whose end we wait for
    if _is_ready(server, port):
        _point_to(f"http://127.0.0.1:{port}/{path}", open_browser)
    code = server.wait()
    said.join(5)  # what it said last
    return 0 if code in (0, -signal.SIGINT, -signal.SIGTERM, 130, 143) else 1


def page(uri: str, days: Sequence[str]) -> str:
    """The page of these days, as it comes after the address of the server: `#/experiments/…`.

    Raises:
        AddressError: MLflow has no run of these days.
    """
    kind = "workflowType=machine_learning"
    if not days:
        return f"#/experiments?{kind}"
    client = store.connect(uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    ids: dict[str, str] = {}
    for day in days:
        for run in client.search_runs(experiments, f"tags.date = '{day}'", max_results=1000):
            ids[run.info.run_id] = run.info.experiment_id
    if not ids:
        raise AddressError(
            f"{', '.join(days)}: MLflow has no run of that day; daypoint sync {days[0]} sends what there is"
        )
    if len(days) == 1:
        wanted = f'tags.date = "{days[0]}"'
    elif len(ids) <= MOST_RUNS:
        wanted = f"attributes.run_id IN ({', '.join(repr(run_id) for run_id in ids)})"
    else:  # what all of the days begin with, such as a month
        common = next(
            days[0][:n] for n in range(8, -1, -1) if all(day.startswith(days[0][:n]) for day in days)
        )
        wanted = f'tags.date LIKE "{common}%"'
    numbers = sorted(set(ids.values()))
    where = f"{kind}&searchFilter={quote(wanted)}"
    if len(numbers) == 1:
        return f"#/experiments/{numbers[0]}/runs?{where}"
    return f"#/compare-experiments/s?experiments={quote(json.dumps(numbers))}&{where}"


def _refuse_taken(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise StoreError(f"port {port}: {error.strerror}; try daypoint ui --port {port + 1}") from None


def _is_ready(server: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + READY_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return True
        except OSError:
            time.sleep(0.2)
    return False


def _pass_on(stream: IO[bytes]) -> None:
    """Everything that the server says but its greeting, which no option silences."""
    for line in stream:
        if not line.startswith(b"[MLflow] Security middleware enabled"):
            sys.stderr.write(line.decode(errors="replace"))
            sys.stderr.flush()


def _point_to(address: str, open_browser: bool) -> None:
    print(f"MLflow: {address}", flush=True)
    if open_browser:
        webbrowser.open(address)
