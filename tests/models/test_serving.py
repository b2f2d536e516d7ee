"""What is packaged is served by MLflow's own commands: in another directory, where daypoint cannot be imported."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import saved_models
import torch
import warm
from projects import clean_environment
from saved_models import USER_MODEL, prepared, save, table, write_user_model, zoo
from written_runs import unused_port

import daypoint
from daypoint.models.publish import publish
from daypoint.tracking import store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

BLOCKER = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "daypoint":
            raise ImportError("daypoint must not be needed here")


sys.meta_path.insert(0, Blocked())
"""


@dataclass
class Served:
    """A published model, and rows with the answers that its checkpoint gives."""

    uri: str
    json: dict[str, Any]
    csv: str | None
    answers: np.ndarray


@dataclass
class Elsewhere:
    """A directory that is not the project's, and an environment in which daypoint cannot be imported."""

    directory: Path
    environment: dict[str, str]

    def mlflow(self, *arguments):
        done = subprocess.run(
            ["mlflow", *map(str, arguments)],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def elsewhere(tmp_path_factory, store_uri):
    directory, blocker = tmp_path_factory.mktemp("elsewhere"), tmp_path_factory.mktemp("blocker")
    (blocker / "sitecustomize.py").write_text(BLOCKER)
    environment = clean_environment(
        MLFLOW_TRACKING_URI=store_uri,
        MLFLOW_ALLOW_PICKLE_DESERIALIZATION="false",
        PYTHONPATH=str(blocker),
        PATH=os.pathsep.join([str(Path(warm.python()).parent), os.environ["PATH"]]),
        WARM_GROUP="1",
    )
    tried = subprocess.run([warm.python(), "-c", "import daypoint"], env=environment, capture_output=True)
    assert b"must not be needed here" in tried.stderr
    return Elsewhere(directory, environment)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with a published model of every kind; `{kind: Served}`, and its store."""
    root = tmp_path_factory.mktemp("project")
    (root / "pyproject.toml").touch()
    uri = f"sqlite:///{root}/mlruns/mlflow.db"
    store.prepare(uri)
    write_user_model(root)
    before = os.getcwd()
    os.chdir(root)
    sys.path.insert(0, str(root))
    torch.manual_seed(0)
    try:
        yield root, uri, dict(_published(root, uri))
    finally:
        os.chdir(before)
        sys.path.remove(str(root))
        for name in ("net", "layers"):
            sys.modules.pop(name, None)


def _published(root, uri):
    digits, linear = saved_models.digits(), saved_models.linear()
    images, _ = next(iter(digits.val_loader()))
    for kind in ("CNN", "MLP", "Transformer"):
        run = save(root, zoo(kind, digits), data=digits, experiment=kind.lower())
        yield kind.lower(), _served(root, uri, run, images[:3])
    rows, _ = next(iter(linear.val_loader()))
    run = save(root, zoo("MLP", linear), data=linear)
    frame = pd.DataFrame(rows[:3].double().numpy(), columns=[f"x{i}" for i in range(16)])
    yield "linear", _served(root, uri, run, rows[:3], frame)
    for kind, options in (("table", {}), ("prices", {"regression": True}), ("text", {"text": True})):
        frame, data = table(root / f"{kind}.csv", **options)
        run = save(root, zoo("MLP", data), data=data)
        yield (
            kind,
            _served(root, uri, run, prepared(data, frame.head(9)), frame.head(9), data.preparation["target"]),
        )
    run = save(root, USER_MODEL, config={"data": {"input_shape": [3]}}, experiment="user")
    rows = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])
    yield "user", _served(root, uri, run, rows, pd.DataFrame(rows.numpy(), columns=["x0", "x1", "x2"]))


def _served(root, uri, run, x, frame=None, target=None):
    (found,) = publish(str(run.directory), root / "outputs", uri=uri).published
    with torch.no_grad():
        answers = daypoint.load(run.directory)(x).numpy()
    if target and "mean" in target:
        answers = answers.astype(np.float64) * target["std"] + target["mean"]
    if frame is None:
        return Served(found.registered.uri, {"inputs": x.tolist()}, None, answers)
    split = json.loads(frame.to_json(orient="split", index=False, double_precision=15))
    csv = frame.to_csv(index=False)
    return Served(found.registered.uri, {"dataframe_split": split}, csv, answers)


def check(text, served):
    predictions = json.loads(text)["predictions"]
    found = [list(row.values()) if isinstance(row, dict) else row for row in predictions]
    np.testing.assert_allclose(np.array(found), served.answers, rtol=1e-5, atol=1e-5)


KINDS = ["cnn", "mlp", "transformer", "linear", "table", "prices", "text", "user"]


@pytest.mark.parametrize("kind", ["cnn", "text", "user"])  # `serve` takes the others the same way
def test_mlflow_models_predict_gives_the_checkpoints_own_answers(project, kind, tmp_path_factory):
    _, uri, models = project
    served, place = models[kind], elsewhere(tmp_path_factory, uri)
    (place.directory / "in.json").write_text(json.dumps(served.json))
    options = ["-m", served.uri, "--env-manager", "local"]
    check(place.mlflow("models", "predict", "-i", "in.json", *options), served)
    if served.csv is not None and kind != "text":
        (place.directory / "in.csv").write_text(served.csv)
        check(place.mlflow("models", "predict", "-i", "in.csv", "-t", "csv", *options), served)


@pytest.mark.parametrize(("kind", "type_"), [("text", "bool to <U0"), ("user", "int64 to float64")])
def test_predict_refuses_a_csv_whose_columns_look_like_another_type(project, kind, type_, tmp_path_factory):
    """MLflow's own limit, written down in daypoint.models.inputs; when this test fails, it is gone."""
    _, uri, models = project
    place = elsewhere(tmp_path_factory, uri)
    text = models[kind].csv.replace(".0", "") if kind == "user" else models[kind].csv
    (place.directory / "in.csv").write_text(text)
    with pytest.raises(AssertionError, match=f"Can not safely convert {type_}"):
        options = ["-m", models[kind].uri, "--env-manager", "local"]
        place.mlflow("models", "predict", "-i", "in.csv", "-t", "csv", *options)


@contextlib.contextmanager
def server(command, page, directory, environment):
    """The address of a server that this command and a port start, once it shows this page."""
    port = unused_port()
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        ready(process, f"{address}/{page}")
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()


def serving(place, model_uri):
    """`mlflow models serve`."""
    command = ["mlflow", "models", "serve", "-m", model_uri, "--env-manager", "local"]
    return server(command, "ping", place.directory, place.environment)


def ready(process, address, seconds=120.0):
    deadline = time.monotonic() + seconds
    while True:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        try:
            urllib.request.urlopen(address, timeout=2).close()
            return
        except OSError:
            time.sleep(0.3)


def ask(address, content, kind):
    request = urllib.request.Request(
        f"{address}/invocations", data=content.encode(), headers={"Content-Type": kind}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


@pytest.mark.services
@pytest.mark.parametrize("kind", KINDS)
def test_mlflow_models_serve_takes_json_and_csv(project, kind, tmp_path_factory):
    _, uri, models = project
    served = models[kind]
    with serving(elsewhere(tmp_path_factory, uri), served.uri) as address:
        check(ask(address, json.dumps(served.json), "application/json"), served)
        if served.csv is not None:
            backwards = pd.read_csv(io.StringIO(served.csv)).iloc[:, ::-1].assign(more=1)
            check(ask(address, served.csv, "text/csv"), served)
            check(ask(address, backwards.to_csv(index=False), "text/csv"), served)
            frame = served.json["dataframe_split"]
            records = [dict(zip(frame["columns"], row, strict=True)) for row in frame["data"]]
            check(ask(address, json.dumps({"dataframe_records": records}), "application/json"), served)
        if kind == "user":  # whole numbers, and columns by name
            x = models[kind].json["dataframe_split"]["data"]
            named = {f"x{i}": [row[i] for row in x] for i in range(3)}
            check(ask(address, json.dumps({"inputs": named}), "application/json"), served)
            check(ask(address, served.csv.replace(".0", ""), "text/csv"), served)
            whole = json.dumps(served.json).replace(".0", "")
            check(ask(address, whole, "application/json"), served)


@pytest.mark.services
def test_a_server_gets_the_model_and_serves_it_to_others(project, tmp_path_factory):
    root, _, _ = project
    home = tmp_path_factory.mktemp("server")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = clean_environment(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false", PATH=path)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{home}/server.db"]
    command += ["--artifacts-destination", f"{home}/artifacts", "--workers", "1"]
    with server(command, "health", home, environment) as address:
        digits = saved_models.digits()
        x, _ = next(iter(digits.val_loader()))
        run = save(root, zoo("MLP", digits), data=digits, experiment="remote")
        served = _served(root, address, run, x[:3])
        again = publish(str(run.directory), root / "outputs", uri=address).published[0].registered
        assert (served.uri, again.version) == (f"models:/remote@{run.day}", "1")
        place = elsewhere(tmp_path_factory, address)
        (place.directory / "in.json").write_text(json.dumps(served.json))
        options = ["-m", served.uri, "--env-manager", "local"]
        check(place.mlflow("models", "predict", "-i", "in.json", *options), served)
