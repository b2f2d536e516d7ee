"""benchmarks/overhead.py at its smallest: it runs, writes its two files, and every point that daypoint took is there again."""

import json
import subprocess
import sys

import pytest
from conftest import REPOSITORY, clean_environment


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
