"""Provenance: the project's own repository in every state it can be in, and the versions, without importing
anything.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time

import pytest
from repositories import git

import daypoint
from daypoint.record import identity
from daypoint.run.provenance import git_state, uncommitted_diff, versions

UNKNOWN = {"commit": None, "branch": None, "dirty": None, "diff_sha256": None}


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "train.py").write_text("print(1)\n")
    (root / ".gitignore").write_text("ignored\n")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    return root


def test_a_clean_repository(repository):
    commit = git(repository, "rev-parse", "HEAD")
    expected = {"commit": commit, "branch": "main", "dirty": False, "reason": None, "diff_sha256": None}
    assert git_state(repository) == expected
    assert uncommitted_diff(repository) == b""


def test_the_repository_is_the_projects_not_that_of_the_working_directory(repository, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    git(other, "commit", "-q", "--allow-empty", "-m", "other")
    monkeypatch.chdir(other)
    # What git sets while it runs a hook of the other repository.
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert git_state(repository)["commit"] == git(repository, "rev-parse", "HEAD")


def test_a_subdirectory_speaks_of_the_whole_repository(repository):
    (repository / "sub").mkdir()
    (repository / "train.py").write_text("print(2)\n")
    assert git_state(repository / "sub")["dirty"] is True
    assert b"print(2)" in uncommitted_diff(repository / "sub")


def test_outside_of_any_repository(tmp_path):
    assert git_state(tmp_path) == {**UNKNOWN, "reason": "the project is in no git repository"}
    assert uncommitted_diff(tmp_path) == b""


def test_a_directory_that_is_not_there(tmp_path):
    assert "absent" in git_state(tmp_path / "absent")["reason"]


def test_a_repository_without_a_commit(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "train.py").write_text("print(1)\n")
    state = git_state(tmp_path)
    assert (state["commit"], state["branch"], state["dirty"]) == (None, "main", True)
    assert state["reason"] == "the repository has no commit yet"
    assert b"print(1)" in uncommitted_diff(tmp_path)


def test_without_git(repository, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(repository) == {**UNKNOWN, "reason": "git is not installed, or not on PATH"}


def test_a_detached_head(repository):
    git(repository, "checkout", "-q", "--detach")
    state = git_state(repository)
    assert (state["branch"], state["commit"]) == (None, git(repository, "rev-parse", "HEAD"))
    assert state["reason"] is None


@pytest.mark.parametrize(
    "config", [(), ("diff.noprefix", "diff.mnemonicPrefix", "color.ui=always", "diff.external=false")]
)
def test_the_diff_leads_from_the_commit_to_the_tree(repository, tmp_path, config):
    for setting in config:
        name, _, value = setting.partition("=")
        git(repository, "config", name, value or "true")
    (repository / "train.py").write_text("print(2)\n")
    (repository / "added.py").write_text("staged\n")
    git(repository, "add", "added.py")
    (repository / "new é.py").write_text("untracked\n")
    (repository / "sub").mkdir()
    (repository / "sub" / "latin.py").write_bytes(bytes(range(1, 256)))
    (repository / "ignored").write_text("not code")
    index = (repository / ".git" / "index").read_bytes()
    state, diff = git_state(repository), uncommitted_diff(repository)
    assert state["dirty"] is True
    assert state["diff_sha256"] == hashlib.sha256(diff).hexdigest()
    assert (repository / ".git" / "index").read_bytes() == index

    copy = tmp_path / "copy"
    git(tmp_path, "clone", "-q", str(repository), str(copy))
    (tmp_path / "diff").write_bytes(diff)
    git(copy, "apply", str(tmp_path / "diff"))
    for name in ("train.py", "added.py", "new é.py", "sub/latin.py"):
        assert (copy / name).read_bytes() == (repository / name).read_bytes()
    assert not (copy / "ignored").exists()


def test_a_change_of_equal_length_in_the_moment_of_the_commit_is_in_the_diff(repository):
    """git tells such a file by the time of its index, which a copy of the index has to keep."""
    file, index = repository / "new.py", repository / ".git" / "index"
    then = 1_774_707_302
    git(repository, "config", "core.trustctime", "false")
    for number in (1, 2):
        file.write_text(f"print({number})\n")
        os.utime(file, (then, then))
        if number == 1:
            git(repository, "add", "new.py")
            git(repository, "commit", "-q", "-m", "two")
    os.utime(index, (then, then))
    assert b"+print(2)" in uncommitted_diff(repository)


def test_a_deleted_file_and_a_rename_are_in_the_diff(repository):
    git(repository, "mv", "train.py", "moved.py")
    assert b"moved.py" in uncommitted_diff(repository)
    (repository / "moved.py").unlink()
    assert b"deleted file" in uncommitted_diff(repository)


def test_the_results_of_runs_make_no_tree_dirty(repository):
    for name in ("outputs/20260328/run.json", "mlruns/mlflow.db"):
        (repository / name).parent.mkdir(parents=True)
        (repository / name).write_text("result")
    assert git_state(repository)["dirty"] is False
    assert git_state(repository, generated=("mlruns",))["dirty"] is True


def test_only_untracked_code_and_settings_are_included_the_rest_is_named_with_its_hash(repository):
    for name in ("new.py", "conf.yaml", "Makefile", ".flake8"):
        (repository / name).write_text(f"this is {name}\n")
    left_out = {
        "curves.png": b"\x89PNG\0",
        "day.html": b"<html>",
        "trend.svg": b"<svg>",
        "data.csv": b"a,b\n",
        "x.npy": b"\x93NUMPY",
        "binary": b"a\0b",
        "large.py": b"#" * (2**20 + 1),
    }
    for name, content in left_out.items():
        (repository / name).write_bytes(content)
    diff = uncommitted_diff(repository)
    for name in ("new.py", "conf.yaml", "Makefile", ".flake8"):
        assert f"+this is {name}".encode() in diff
    for name, content in left_out.items():
        digest = hashlib.sha256(content).hexdigest()
        assert f"# left out: {name} ({len(content)} bytes, SHA-256 {digest}, untracked)\n".encode() in diff
    assert len(diff) < 3000


def test_a_large_data_set_is_not_hashed(repository, monkeypatch):
    monkeypatch.setattr("daypoint.run.provenance._MOST_HASHED_BYTES", 10)
    (repository / "a.csv").write_bytes(b"12345678")
    (repository / "b.csv").write_bytes(b"12345678")
    diff = uncommitted_diff(repository)
    assert b"# left out: a.csv (8 bytes, SHA-256" in diff
    assert b"# left out: b.csv (8 bytes, untracked)\n" in diff


def test_places_for_secrets_are_named_but_neither_included_nor_hashed(repository):
    (repository / ".env").write_text("TOKEN=TOPSECRET")
    (repository / "Credentials.json").write_text("TOPSECRET")
    diff = uncommitted_diff(repository)
    assert b"# left out: .env (15 bytes, untracked)\n" in diff
    assert b"# left out: Credentials.json (9 bytes, untracked)\n" in diff
    assert b"TOPSECRET" not in diff
    assert git_state(repository)["dirty"] is True


def test_a_password_in_a_file_of_settings_is_hidden_and_the_diff_still_applies(repository, tmp_path):
    (repository / "db.yaml").write_text("host: h\npassword: hunter2\n")
    (repository / "train.py").write_text("password = 'read from stdin'\n")
    diff = uncommitted_diff(repository)
    assert b"hunter2" not in diff
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    (tmp_path / "diff").write_bytes(diff)
    git(clone, "apply", str(tmp_path / "diff"))
    assert (clone / "db.yaml").read_text() == "host: h\npassword: ***\n"
    assert (clone / "train.py").read_text() == "password = 'read from stdin'\n"


def test_a_repository_inside_the_project_is_left_alone(repository):
    inner = repository / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "file").write_text("x")
    assert git_state(repository)["dirty"] is True
    assert uncommitted_diff(repository) == b""


def test_a_worktree(repository, tmp_path):
    git(repository, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    (tmp_path / "side" / "new.py").write_text("x\n")
    state = git_state(tmp_path / "side")
    assert (state["branch"], state["dirty"], state["reason"]) == ("side", True, None)
    assert b"new.py" in uncommitted_diff(tmp_path / "side")


def test_a_git_that_hangs_is_given_up(repository, tmp_path, monkeypatch):
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nsleep 60 & sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    started = time.monotonic()
    state = git_state(repository, timeout_seconds=0.3)
    assert time.monotonic() - started < 5
    assert state == {**UNKNOWN, "reason": "git status took longer than 0.3 s"}


def test_a_complaint_of_git_is_passed_on(repository):
    (repository / ".git" / "HEAD").write_text("nonsense")
    assert git_state(repository)["commit"] is None
    assert git_state(repository)["reason"]


# ---------------------------------------------------------------- in the run directory


def settings(outputs, **more):
    return {"tracking": {"enabled": False, "outputs": str(outputs), **more}}


def train(outputs, **options):
    """A run of the project in the working directory; resumed when asked to."""
    with daypoint.open_run(settings(outputs), quiet=True, **options) as run:
        run.log(loss=1.0)
    return run


def test_a_clean_tree_leaves_no_diff_in_the_run_directory(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(repository)
    run = train(tmp_path / "outputs")
    assert identity.read_run(run.directory)["git"]["dirty"] is False
    assert list(run.directory.glob("*.diff")) == []


def test_the_diff_in_the_run_directory_gives_the_tree_back(repository, tmp_path, monkeypatch):
    (repository / "train.py").write_text("print(2)\n")
    (repository / "new.py").write_bytes(b"\x01\xff")
    monkeypatch.chdir(repository)
    run = train(tmp_path / "outputs")
    state = identity.read_run(run.directory)["git"]
    path = run.directory / "uncommitted.diff"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == state["diff_sha256"]
    copy = tmp_path / "copy"
    git(tmp_path, "clone", "-q", str(repository), str(copy))
    git(copy, "checkout", "-q", state["commit"])
    git(copy, "apply", str(path))
    assert (copy / "train.py").read_text() == "print(2)\n"
    assert (copy / "new.py").read_bytes() == b"\x01\xff"


def test_each_attempt_has_its_own_code(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(repository)
    outputs = tmp_path / "outputs"
    (repository / "train.py").write_text("print(2)\n")
    train(outputs)
    (repository / "train.py").write_text("print(3)\n")
    run = train(outputs, resume="last")
    record = identity.read_run(run.directory)
    names = ("uncommitted.diff", "uncommitted_attempt2.diff")
    contents = [(run.directory / name).read_bytes() for name in names]
    hashes = [hashlib.sha256(content).hexdigest() for content in contents]
    assert [attempt["git"]["diff_sha256"] for attempt in record["attempts"]] == hashes
    assert record["git"] == record["attempts"][1]["git"]
    assert b"+print(2)" in contents[0]
    assert b"+print(3)" in contents[1]


def test_the_code_is_inspected_once_for_each_attempt(repository, tmp_path, monkeypatch):
    log = tmp_path / "asked"
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "$3" >> {log}\nexec {shutil.which("git")} "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    (repository / "train.py").write_text("print(2)\n")
    monkeypatch.chdir(repository)
    train(tmp_path / "outputs")
    assert sorted(log.read_text().split()) == ["diff", "rev-parse", "status"]


@pytest.mark.parametrize("place", ["outputs", "results/here"])
def test_earlier_runs_are_not_code(repository, place, monkeypatch):
    monkeypatch.chdir(repository)
    for _ in range(2):
        run = train(place)
    assert run.directory.is_relative_to(repository / place)
    assert identity.read_run(run.directory)["git"]["dirty"] is False


# ---------------------------------------------------------------- versions


def test_the_versions_are_told_without_importing_anything():
    script = (
        "import sys, json; from daypoint.run.provenance import versions; found = versions();"
        "assert not {'torch', 'numpy', 'mlflow', 'omegaconf', 'hydra', 'safetensors'} & set(sys.modules);"
        "print(json.dumps(found))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert '"torch": "2.' in done.stdout
    assert versions()["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(versions()) >= {
        "platform",
        "daypoint",
        "numpy",
        "hydra-core",
        "omegaconf",
        "mlflow",
        "safetensors",
    }


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr("daypoint.run.provenance.PACKAGES", ("no-such-package",))
    assert versions()["no-such-package"] is None


def test_git_is_there_for_these_tests():
    assert shutil.which("git")
