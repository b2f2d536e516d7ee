"""Ranks: one run for all of them, known before any process group exists."""

import subprocess
import sys

import pytest
from projects import clean_environment

from daypoint.base.errors import RunError
from daypoint.ranks import group
from daypoint.record import identity


def test_without_a_distributed_job_this_is_rank_0(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert group.is_main()
    assert group.agree("run", "here") == "here"


def test_another_rank_without_torchruns_store_is_told_how_to_start(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with pytest.raises(RunError, match=r"rank 1: .*torchrun"):
        group.agree("run", "")


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "4", "LOCAL_RANK": "0", "WORLD_SIZE": "8"},
        {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"},
    ],
)
def test_only_the_global_rank_0_records(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert not group.is_main()


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_under_torchrun_all_ranks_share_one_run_directory(project, count):
    (project.root / "spy.py").write_text(
        "import os, time\n"
        "time.sleep(0.7 * int(os.environ['RANK']))\n"  # ranks never start at the same instant
        "import daypoint\n"
        "with daypoint.open_run({'tracking': {'enabled': False}}, quiet=True) as run:\n"
        "    for _ in run.epochs(1):\n        run.log(loss=float(os.environ['RANK']))\n"
        "    print('RANK', os.environ['RANK'], run.directory, flush=True)\n"
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc_per_node={count}",
        "spy.py",
    ]
    done = subprocess.run(
        command, cwd=project.root, env=clean_environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split()[1:3] for line in done.stdout.splitlines() if line.startswith("RANK"))
    (directory,) = project.runs()
    assert said == {str(rank): str(directory) for rank in range(count)}
    assert identity.read_run(directory)["status"] == "FINISHED"
    assert [path.name for path in project.outputs.glob("*/*")] == [directory.name]


@pytest.mark.slow
def test_two_runs_of_one_job_are_two_directories_on_every_rank(project):
    (project.root / "spy.py").write_text(
        "import os, daypoint\n"
        "for number in range(2):\n"
        "    with daypoint.open_run({'tracking': {'enabled': False}}, quiet=True) as run:\n"
        "        run.log(loss=1.0)\n"
        "    print('RANK', os.environ['RANK'], number, run.directory, flush=True)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "spy.py"]
    done = subprocess.run(
        command, cwd=project.root, env=clean_environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RANK")]
    first, second = map(str, project.runs())
    assert sorted(said) == [["0", "0", first], ["0", "1", second], ["1", "0", first], ["1", "1", second]]


@pytest.mark.slow
def test_under_torchrun_the_hydra_app_makes_one_directory(project):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += ["train.py", "trainer.epochs=1", "model=linear", "tracking=off"]
    done = subprocess.run(
        command, cwd=project.root, env=clean_environment(), capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    (directory,) = project.runs()
    assert [path.name for path in project.outputs.glob("*/*")] == [directory.name]
