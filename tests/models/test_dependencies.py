"""A model's class takes along what it imports, and nothing else."""

import importlib.metadata
import subprocess
import sys

import pytest

from daypoint.models import dependencies


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_module_takes_along_what_it_imports_from_the_project(root):
    (root / "netx.py").write_text("import os, layersx\n\ndef late():\n    from lossx import Loss\n")
    (root / "layersx.py").write_text("import math\n")
    (root / "lossx.py").write_text("")
    (root / "unusedx.py").write_text("")
    inside, required = dependencies.collect({"_target_": "netx.Net"}, root)
    assert inside == {name: root / f"{name}.py" for name in ("netx", "layersx", "lossx")}
    assert required == []


def test_a_package_is_taken_whole_and_can_be_imported_from_the_copy(root, tmp_path):
    package = root / "packx"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "deep" / "__init__.py").write_text("from .net import Net\n")
    (package / "deep" / "net.py").write_text(
        "from packx.sizes import WIDTH\n\n\nclass Net:\n    width = WIDTH\n"
    )
    (package / "sizes.py").write_text("WIDTH = 7\n")
    (package / "__pycache__").mkdir()
    inside, _ = dependencies.collect({"_target_": "packx.deep.Net"}, root)
    dependencies.copy(inside, tmp_path / "copy")
    assert not list((tmp_path / "copy").rglob("__pycache__"))
    script = "from packx.deep import Net; print(Net.width)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={"PYTHONPATH": str(tmp_path / "copy")},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "7\n", done.stderr


def test_what_is_installed_becomes_a_requirement_with_its_version(root):
    (root / "netx.py").write_text(
        "import numpy as np\nfrom torch import nn\nfrom daypoint.zoo import models\n"
    )
    _, required = dependencies.collect({"_target_": "netx.Net"}, root)
    assert [line.partition("==")[0] for line in required] == ["daypoint", "numpy", "torch"]
    assert f"numpy=={importlib.metadata.version('numpy')}" in required
    assert not any("+" in line for line in required)


def test_an_environment_inside_the_project_is_not_its_code(root, monkeypatch):
    installed = root / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "otherx.py").write_text("")
    monkeypatch.syspath_prepend(installed)
    (root / "netx.py").write_text("import otherx\n")
    assert dependencies.collect({"_target_": "netx.Net"}, root) == ({"netx": root / "netx.py"}, [])


def test_every_target_below_a_node_counts(root):
    (root / "netx.py").write_text("")
    (root / "headx.py").write_text("")
    node = {"_target_": "netx.Net", "heads": [{"_target_": "headx.Head"}]}
    assert dependencies.collect(node, root)[0].keys() == {"netx", "headx"}


def test_modules_that_import_each_other_come_to_an_end(root):
    (root / "netx.py").write_text("import headx\n")
    (root / "headx.py").write_text("import netx\n")
    assert dependencies.collect({"_target_": "netx.Net"}, root)[0].keys() == {"netx", "headx"}
