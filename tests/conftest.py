"""What the tests share: a project of its own for each test, and commands run in it as a user runs them."""

import os
import signal

import pytest
import warm
from projects import make_project

# A shell that starts pytest in the background has it ignore Ctrl-C, and all its children too.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Before anything imports torch: its threads must not spin on cores that the tests' other processes need.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="module")
def warm_python():
    """Couriers and packagers of this process have torch and mlflow in memory when they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.executable", warm.python())
        yield


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """The bytes of an MLflow store without runs; making one takes a second."""
    from daypoint.tracking import store

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    store.prepare(f"sqlite:///{path}")
    return path.read_bytes()


@pytest.fixture
def root(tmp_path, tables):
    """A project without train.py, with an empty store."""
    root = tmp_path / "project"
    (root / "mlruns").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    (root / "mlruns" / "mlflow.db").write_bytes(tables)
    return root


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path / "project")


def pytest_collection_modifyitems(items):
    """Slow tests may take their time; the others are stopped by the `timeout` of pyproject.toml."""
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("services"):
            item.add_marker(pytest.mark.timeout(1800))
