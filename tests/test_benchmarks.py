"""The benchmarks at their smallest: they run, write their two files, and what they logged or saved is there again."""

import json
import subprocess
import sys

import pytest
from projects import REPOSITORY, clean_environment


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_benchmark_finds_every_point_that_was_logged(tmp_path):
    script = REPOSITORY / "benchmarks" / "overhead.py"
    command = [
        sys.executable,
        str(script),
        "--quick",
        "--peers",
        "daypoint,daypoint-alone",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (page,) = tmp_path.glob("overhead-*.md")
    assert str(page) in done.stdout
    assert "daypoint, tracking off" in page.read_text()
    document = json.loads(page.with_suffix(".json").read_text())
    contenders = document["contenders"]
    assert {name: of["failure"] for name, of in contenders.items()} == dict.fromkeys(contenders)
    assert list(contenders) == ["none", "list", "daypoint", "daypoint-alone"]
    for name in ("daypoint", "daypoint-alone"):
        for counts in (contenders[name]["session"]["counts"], contenders[name]["sigkill"]):
            assert counts["logged"] > 0
            assert counts["kept"] == counts["logged"]
            assert counts["doubled"] == 0
        assert contenders[name]["step"]["rounds"] == 2
    assert contenders["list"]["session"]["counts"] == {
        "logged": 600, "kept": 600, "rounded": 0, "wrong": 0, "doubled": 0,
    }  # fmt: skip
    assert contenders["list"]["sigkill"]["kept"] == 0


def test_the_benchmark_of_listing_shows_every_command():
    script = REPOSITORY / "benchmarks" / "listing.py"
    command = [sys.executable, str(script), "--runs", "30", "--epochs", "2", "--rounds", "1"]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| `")]
    assert len(rows) == 9
    assert all(" s | " in row for row in rows)


@pytest.mark.slow
def test_the_checkpoint_benchmark_reads_back_what_it_wrote(tmp_path):
    script = REPOSITORY / "benchmarks" / "checkpoint.py"
    command = [sys.executable, str(script), "--quick", "--scratch", str(tmp_path), "--out", str(tmp_path)]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (page,) = tmp_path.glob("checkpoint-*.md")
    assert str(page) in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [page.with_suffix(".json").name, page.name]
    document = json.loads(page.with_suffix(".json").read_text())
    contenders = document["sizes"]["12 MB"]["contenders"]
    assert list(contenders) == ["raw", "torch", "safetensors", "dcp", "dcp-kept", "daypoint-wait", "daypoint"]
    for name, of in contenders.items():
        assert len(of["rounds"]) == 2
        assert 0 < of["blocked"] <= of["total"]
        assert f"{of['total'] * 1e3:,.0f}" in page.read_text(), name
