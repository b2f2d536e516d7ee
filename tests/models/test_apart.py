"""A model is built with the code it was trained with, whatever is imported under the same names, or not at all."""

import json
import subprocess
import sys
import textwrap

import pytest
import warm
from projects import clean_environment
from repositories import git

import daypoint
from daypoint.base.errors import CheckpointError
from daypoint.record import documents, identity

TRAIN = """
import torch, daypoint
import {module} as module
with daypoint.open_run({{"model": {{"_target_": "{module}.Net"}}, "tracking": {{"enabled": False}}}}, quiet=True) as run:
    run.save(model=module.Net())
"""
NET = """
import torch
from {parts} import answer

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x * 0 + answer()
"""


def project(root, answer, module="clashing"):
    """A project with a model in two files, one run of it, and a conf/ that names its class."""
    root.mkdir()
    (root / "pyproject.toml").touch()
    (root / "conf").mkdir()
    (root / "conf" / "model.yaml").write_text(f"_target_: {module}.Net\n")
    if "." in module:
        package = root / module.partition(".")[0]
        package.mkdir()
        (package / "__init__.py").touch()
        files_of, parts = package, ".parts"
    else:
        files_of, parts = root, f"{module}_parts"
    (files_of / f"{module.rpartition('.')[2]}.py").write_text(NET.format(parts=parts))
    name = "parts" if "." in module else f"{module}_parts"
    (files_of / f"{name}.py").write_text(f"def answer():\n    return {answer}\n")
    (root / "train.py").write_text(TRAIN.format(module=module))
    return root


def train(root):
    subprocess.run([warm.python(), "train.py"], cwd=root, check=True, env=clean_environment())
    return root


def loaded(root):
    return daypoint.load("last", outputs=root / "outputs")


def answer_of(model):
    import torch

    return model(torch.zeros(())).item()


@pytest.mark.parametrize("module", ["clashing", "clashing_package.net"])
def test_two_projects_with_modules_of_the_same_name_load_side_by_side(tmp_path, module, monkeypatch):
    one, two = (train(project(tmp_path / f"p{n}", n, module)) for n in (1, 2))
    first, second, third = loaded(one), loaded(two), loaded(one)
    assert [answer_of(model) for model in (first, second, third)] == [1, 2, 1]
    assert type(first) is type(third)
    assert type(first).__module__.startswith(f"{module}@")  # found under that name, by pickle or inspect
    assert getattr(sys.modules[type(second).__module__], "Net") is type(second)  # noqa: B009
    assert module not in sys.modules


def test_code_that_was_imported_before_is_left_as_it_is(tmp_path, monkeypatch):
    one, two = (train(project(tmp_path / f"p{n}", n)) for n in (1, 2))
    monkeypatch.syspath_prepend(one)
    import clashing

    try:
        assert type(loaded(one)) is clashing.Net
        assert answer_of(loaded(two)) == 2
        assert sys.modules["clashing"] is clashing
        assert answer_of(clashing.Net()) == 1
    finally:
        for name in ("clashing", "clashing_parts"):
            sys.modules.pop(name, None)


def test_a_file_that_was_edited_since_is_taken_from_the_history_of_the_project(tmp_path):
    root = project(tmp_path / "p", 1)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    train(root)
    (root / "clashing_parts.py").write_text("def answer():\n    return 3\n")
    assert answer_of(loaded(root)) == 1


def test_a_file_that_was_edited_since_and_is_nowhere_else_is_refused_by_name(tmp_path):
    root = train(project(tmp_path / "p", 1))
    (root / "clashing_parts.py").write_text("def answer():\n    return 3\n")
    with pytest.raises(
        CheckpointError,
        match=r"module clashing_parts: expected clashing_parts\.py \([0-9a-f]{12}\), found .*; restore the file, or load",
    ):
        loaded(root)


def test_a_card_does_not_say_where_code_is_run_from(tmp_path, monkeypatch):
    """A card that names a file below outputs/ as the code of an allowed class is refused, and the file is not run."""
    root = train(project(tmp_path / "p", 1))
    (run,) = (root / "outputs").glob("*/*/")
    evil = run / "clashing.py"
    evil.write_text(f"open({str(tmp_path / 'marker')!r}, 'w')\n" + (root / "clashing.py").read_text())
    (path,) = run.glob("checkpoints/*/model_*.json")
    card = json.loads(path.read_bytes())
    card["code"]["clashing"] = {
        "file": evil.relative_to(root).as_posix(), "sha256": documents.sha256(evil),
    }  # fmt: skip
    listed = card.pop("files")
    card.pop("card_sha256")
    path.write_bytes(identity.seal(card, listed))
    with pytest.raises(CheckpointError, match="module clashing: expected outputs/"):
        loaded(root)
    assert not (tmp_path / "marker").exists()


def test_a_card_of_an_earlier_version_says_nothing_of_its_code_and_is_loaded(tmp_path, monkeypatch):
    root = train(project(tmp_path / "p", 1))
    (path,) = (root / "outputs").glob("*/*/checkpoints/*/model_*.json")
    card = json.loads(path.read_bytes())
    card.pop("code")
    listed = card.pop("files")
    card.pop("card_sha256")
    path.write_bytes(identity.seal(card, listed))
    monkeypatch.syspath_prepend(root)
    try:
        assert answer_of(loaded(root)) == 1
    finally:
        for name in ("clashing", "clashing_parts"):
            sys.modules.pop(name, None)


def test_resuming_with_an_edited_model_says_so(tmp_path):
    root = train(project(tmp_path / "p", 1))
    (root / "clashing_parts.py").write_text("def answer():\n    return 3\n")
    script = (root / "train.py").read_text().replace("quiet=True", "quiet=True, resume='last'")
    done = subprocess.run(
        [warm.python(), "-c", textwrap.dedent(script)],
        cwd=root, capture_output=True, text=True, env=clean_environment(),
    )  # fmt: skip
    assert "clashing_parts.py has changed since this run began" in done.stderr, done.stderr
