"""`daypoint verify`: every kind of damage is named, and a whole run is found whole."""

import re
import shutil

import pytest
import torch
from repositories import git

import daypoint
from daypoint.again.verify import verify_run
from daypoint.base import day, files
from daypoint.cli import app as cli
from daypoint.record import catalog


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """An outputs directory with one run of three checkpoints."""
    outputs = tmp_path_factory.mktemp("verify") / "outputs"
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters())
    cfg = {"lr": 0.1, "tracking": {"enabled": False, "outputs": str(outputs)}}
    with daypoint.open_run(cfg, quiet=True, monitor="loss") as run:
        for _ in run.epochs(3):
            model(torch.randn(2, 8)).sum().backward()
            optimizer.step()
            run.log(loss=1.0)
            run.save(model=model, optimizer=optimizer)
    return outputs


@pytest.fixture
def run(original, tmp_path):
    """A copy of that run, to be damaged."""
    outputs = tmp_path / "outputs"
    shutil.copytree(original, outputs)
    (directory,) = day.run_directories(outputs)
    return catalog.read(directory, outputs)


def test_a_whole_run_has_no_problems(run):
    assert verify_run(run) == []


def test_a_checkpoint_that_is_thinned_out_meanwhile_is_no_problem(run):
    gone = run.checkpoints[0]  # the list was read; then the trainer removes one of them
    shutil.rmtree(gone)
    pointed = {run.pointer("last"), run.pointer("best")}
    assert gone.name not in pointed
    assert verify_run(run) == []


@pytest.mark.parametrize(
    "pattern", ["model_*.safetensors", "state_*.safetensors", "state_*.state.json", "model_*.json"]
)
@pytest.mark.parametrize("where", [0, 0.5, -1], ids=["first", "middle", "last"])
def test_a_flipped_bit_in_any_file_is_named(run, pattern, where):
    path = next(run.checkpoints[1].glob(pattern))
    content = bytearray(path.read_bytes())
    content[int(where * (len(content) - 1)) if where >= 0 else -1] ^= 1
    path.write_bytes(content)
    assert any(path.name in problem for problem in verify_run(run)), verify_run(run)


def test_a_truncated_file_is_named_with_both_sizes(run):
    path = next(run.checkpoints[0].glob("model_*.safetensors"))
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-3])
    (problem,) = verify_run(run)
    assert f"{path}: expected {size} bytes, found {size - 3}" in problem


def test_a_missing_file_is_named(run):
    path = next(run.checkpoints[0].glob("state_*.state.json"))
    path.unlink()
    assert verify_run(run) == [f"{path}: missing"]


def test_an_edited_hyperparameter_in_a_card_is_noticed(run):
    path = next(run.checkpoints[2].glob("model_*.json"))
    path.write_text(path.read_text().replace('"lr": 0.1', '"lr": 0.2'))
    (problem,) = verify_run(run)
    assert path.name in problem


def test_an_edited_hyperparameter_in_run_json_is_noticed(run):
    record = files.loads(run.files.run.read_bytes())
    record["attempts"][0]["config_sha256"] = "0" * 64
    files.write_atomic(run.files.run, files.dumps(record))
    problems = verify_run(catalog.read(run.directory, run.directory.parent.parent))
    assert "the config is not the one whose hash is beside it" in problems[0]
    assert all("those of no attempt of this run" in problem for problem in problems[2:5])


def test_swapped_cards_are_noticed(run):
    first, second = (next(run.checkpoints[i].glob("model_*.json")) for i in (0, 1))
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    problems = "\n".join(verify_run(run))
    assert str(first) in problems
    assert str(second) in problems


def test_a_damaged_journal_line_is_named_with_its_place(run):
    content = bytearray(run.files.journal.read_bytes())
    content[30] ^= 1
    run.files.journal.write_bytes(content)
    (problem,) = verify_run(run)
    assert re.search(r"journal\.jsonl: bytes 0 to \d+: the checksum does not match", problem)


@pytest.fixture
def dirty(tmp_path, monkeypatch):
    """A run whose code had uncommitted changes, in two attempts."""
    project, outputs = tmp_path / "project", tmp_path / "outputs"
    project.mkdir()
    git(project, "init", "-q")
    git(project, "commit", "-q", "--allow-empty", "-m", "one")
    monkeypatch.chdir(project)
    cfg = {"tracking": {"enabled": False, "outputs": str(outputs)}}
    for resume in (None, "last"):
        (project / "train.py").write_text(f"resume = {resume!r}\n")
        with daypoint.open_run(cfg, quiet=True, resume=resume) as run:
            run.log(loss=1.0)
    return catalog.read(run.directory, outputs)


def test_a_run_with_uncommitted_changes_has_no_problems(dirty):
    assert len(list(dirty.directory.glob("*.diff"))) == 2
    assert verify_run(dirty) == []


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_changed_diff_of_any_attempt_is_named(dirty, attempt):
    path = dirty.files.uncommitted_diff(attempt)
    path.write_bytes(path.read_bytes() + b"\n")
    (problem,) = verify_run(dirty)
    assert problem.startswith(f"{path}: the content has changed since it was written")


def test_a_missing_diff_is_named(dirty):
    path = dirty.files.uncommitted_diff(2)
    path.unlink()
    (problem,) = verify_run(dirty)
    assert problem.startswith(f"{path}: expected the uncommitted changes of the code, found No such file")


def test_a_pointer_to_nothing_is_named(run):
    shutil.rmtree(run.checkpoints[2])
    expected = [
        f"{run.files.pointer(name)}: it points to step000003, which is not there" for name in ("last", "best")
    ]
    assert verify_run(catalog.read(run.directory, run.directory.parent.parent)) == expected


def test_a_damaged_record_does_not_keep_the_days_other_runs_from_being_verified(run, capsys):
    outputs = run.directory.parent.parent
    broken = shutil.copytree(run.directory, run.directory.with_name("000000-000000"))
    (broken / "run.json").write_text("{")
    with pytest.raises(SystemExit) as ended:
        cli.app(["verify", run.record["day"], "--outputs", str(outputs)])
    said = capsys.readouterr().out
    assert ended.value.code == 1
    assert f"{run.address}  ok" in said
    assert f"{broken / 'run.json'}: expected a run record" in said
