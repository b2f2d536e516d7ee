"""The plan of the house (docs/decisions/0001-rooms.md), read from the imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import daypoint

SOURCE = Path(daypoint.__file__).parent
ROOMS = [
    ["errors", "files"],
    [
        "scalar",
        "stats",
        "ranks",
        "signals",
        "day",
        "train_log",
        "ranges",
        "keys",
        "redaction",
        "targets",
        "dependencies",
        "allowlist",
        "config",
        "overrides",
        "sweep",
        "sweep_summary",
        "sweep_resume",
        "hydra_sweep",
        "hydra_app",
        "shapes",
        "tensorfile",
        "packing",
        "thinning",
    ],
    [
        "journal",
        "spool",
        "provenance",
        "identity",
        "store",
        "record",
        "ending",
        "replay",
        "optimization",
        "manifest",
        "pins",
    ],
    [
        "ring",
        "recorder",
        "shelf",
        "snapshot",
        "checkpoint",
        "rebuild",
        "fold",
        "curves",
        "canvas",
        "plots",
        "sweep_plot",
        "curves_page",
        "pictures",
        "note",
        "parent",
        "shipment",
        "model_input",
        "flavors",
        "registry",
        "sync",
        "packager",
        "trainer_pipe",
        "delivery",
        "courier",
        "tables",
        "console",
        "remarks",
        "saver",
    ],
    [
        "closing",
        "run",
        "entry",
        "catalog",
        "query",
        "grammar",
        "facts",
        "selection",
        "model",
        "packaging",
        "publish",
        "agreement",
        "verify",
        "resume",
        "opening",
    ],
    [
        "columns",
        "listing",
        "frames",
        "trend",
        "compare",
        "showing",
        "watching",
        "trend_plot",
        "causes",
        "equality",
        "script",
        "frozen",
        "reproduce",
        "ui",
    ],
    ["options", "reading", "drawing", "cli"],
]
PLACE = {name: (room, i) for room, names in enumerate(ROOMS) for i, name in enumerate(names)}
MODULES = sorted(path.stem for path in SOURCE.glob("*.py") if not path.stem.startswith("__"))
FENCES = {
    "mlflow": {"store", "parent", "shipment", "flavors", "registry"},
    "torch": {
        "scalar",
        "ring",
        "checkpoint",
        "packing",
        "tensorfile",
        "snapshot",
        "rebuild",
        "model",
        "packaging",
        "flavors",
        "ranks",
        "shapes",
    },
    "hydra": {"overrides", "hydra_sweep", "hydra_app"},
    "matplotlib": {"canvas", "plots", "sweep_plot"},
}


def imports(path):
    """Every module that a file imports, at the top or inside a function, outside TYPE_CHECKING."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "daypoint":
                yield from (f"daypoint.{alias.name}" for alias in node.names)


def own(path):
    return {name.split(".")[1] for name in imports(path) if name.startswith("daypoint.")} & set(PLACE)


def test_every_module_has_a_room():
    assert set(MODULES) <= set(PLACE)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_downwards_or_to_the_left(module):
    for other in own(SOURCE / f"{module}.py"):
        assert PLACE[other] < PLACE[module], f"{module} imports {other}"


@pytest.mark.parametrize("path", sorted((SOURCE / "zoo").glob("*.py")), ids=lambda path: path.stem)
def test_the_zoo_knows_errors_only(path):
    assert own(path) <= {"errors"}


@pytest.mark.parametrize("path", sorted((SOURCE / "served").glob("*.py")), ids=lambda path: path.stem)
def test_what_mlflow_copies_into_a_model_imports_nothing_of_daypoint(path):
    assert not [name for name in imports(path) if name.split(".")[0] == "daypoint"]


@pytest.mark.parametrize("package", FENCES)
def test_a_fenced_package_is_imported_only_where_it_may_be(package):
    users = {m for m in MODULES if any(name.split(".")[0] == package for name in imports(SOURCE / f"{m}.py"))}
    assert users <= FENCES[package]


def test_importing_daypoint_imports_nothing_heavy():
    script = "import daypoint, sys; print([m for m in ('torch', 'mlflow', 'hydra', 'numpy', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_training_process_never_imports_mlflow():
    script = "import daypoint.run.run, daypoint.record.catalog, sys; print('mlflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_courier_never_imports_torch():
    script = (
        "import daypoint.tracking.delivery, daypoint.tracking.registry, sys; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_public_name_can_be_had():
    for name in daypoint.__all__:
        assert getattr(daypoint, name) is not None
