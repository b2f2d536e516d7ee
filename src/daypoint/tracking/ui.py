"""`daypoint ui`: serves MLflow's own pages on the project's store, opened at the runs of certain days.

MLflow shows pages for language models unless the address says `workflowType=machine_learning`; these addresses say it. One
day is a filter on the tag `date`; several days are a filter on the ids of their runs, because MLflow's search for tags has no
OR. This module does not draw anything itself.
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
from typing import IO
from urllib.parse import quote

from daypoint.base.errors import AddressError, StoreError
from daypoint.tracking import store

READY_SECONDS = 60.0
"""How long the server may take to start; with one worker it takes 4 s, with MLflow's default of four up to 16."""


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
    environment.setdefault("PYTHONWARNINGS", "ignore")  # meant for MLflow's developers
    command = [sys.executable, "-m", "mlflow", "server", "--uvicorn-opts", "--log-level warning"]
    command += ["--backend-store-uri", uri, "--registry-store-uri", uri]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    if artifacts := store.artifact_root(uri, root):
        command += ["--default-artifact-root", artifacts]
    print(f"MLflow on {store.without_password(uri)}, Ctrl-C ends it", flush=True)
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    said = threading.Thread(target=_pass_on, args=(server.stderr,), daemon=True)
    said.start()

    signal.signal(signal.SIGTERM, lambda number, _: server.send_signal(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the server itself; wait for its end
    if _is_ready(server, port):
        _point_to(f"http://127.0.0.1:{port}/{path}", open_browser)
    code = server.wait()
    said.join(5)  # what it said last
    return 0 if code in (0, -signal.SIGINT, -signal.SIGTERM, 130, 143) else 1


def page(uri: str, days: Sequence[str]) -> str:
    """The page of these days, as the part after the address of the server: `#/experiments/…`.

    Raises:
        AddressError: MLflow has no run of these days.
    """
    kind = "workflowType=machine_learning"
    if not days:
        return f"#/experiments?{kind}"
    client = store.connect(uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = [
        run.info
        for day in days
        for run in client.search_runs(experiments, f"tags.date = '{day}'", max_results=1000)
    ]
    if not runs:
        raise AddressError(
            f"{', '.join(days)}: MLflow has no run of that day; daypoint sync {days[0]} sends what there is"
        )
    wanted = f'tags.date = "{days[0]}"'
    if len(days) > 1:
        wanted = f"attributes.run_id IN ({', '.join(repr(run.run_id) for run in runs)})"
    numbers = sorted({run.experiment_id for run in runs})
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
    """Pass on everything that the server prints except its greeting, which no option turns off."""
    for line in stream:
        if not line.startswith(b"[MLflow] Security middleware enabled"):
            sys.stderr.write(line.decode(errors="replace"))
            sys.stderr.flush()


def _point_to(address: str, open_browser: bool) -> None:
    print(f"MLflow: {address}", flush=True)
    if open_browser:
        webbrowser.open(address)
