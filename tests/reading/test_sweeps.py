"""Sweeps as they are listed, compared and asked about, made by the real script."""

import json

import pytest
from projects import make_project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep over three learning rates, one of them wrong, and two awkward values."""
    project = make_project(tmp_path_factory.mktemp("swept") / "project")
    space = ("optimizer.lr=0.1,bad,0.3", "+note='a/b c','[1,2]'")
    done = project.train("-m", *space, "trainer.epochs=1", "tracking.enabled=false", check=False)
    assert done.returncode != 0, done.stdout
    return project


def listed(project, *arguments):
    return json.loads(project.daypoint("ls", "--json", *arguments).stdout)


def test_a_failing_job_is_named_with_its_overrides_beside_the_others(swept):
    """C20: which jobs failed."""
    assert [(run["job"], run["status"]) for run in listed(swept, "today/sweep")] == [
        (job, "FINISHED") for job in (0, 1, 4, 5)
    ]
    out = swept.daypoint("ls", "today/sweep-").stdout
    for job in (2, 3):
        assert f"without a run: job {job} FAILED  optimizer.lr=bad" in out
    assert "expected float or Tensor" in out


def test_awkward_values_are_values_and_not_directories(swept):
    """C36: slashes, blanks and lists."""
    assert [run["job"] for run in listed(swept, "--where", "note = 'a/b c'")] == [0, 4]
    assert [run["job"] for run in listed(swept, "--where", "note = '[1,2]' or note = [1, 2]")] == [1, 5]
    table = swept.daypoint("ls", "today/sweep").stdout
    assert "a/b c" in table
    assert "[1,2]" in table


def test_a_job_does_not_depend_on_its_place_in_the_sweep(swept):
    """C66: what changes nothing leaves the numbers as they are, first or last in the sweep, or alone."""
    alone = swept.train("optimizer.lr=0.3", "trainer.epochs=1", "tracking.enabled=false")
    assert alone.returncode == 0
    runs = listed(swept, "--where", "optimizer.lr = 0.3")
    assert [run["job"] for run in runs] == [4, 5, None]
    for metric in ("loss", "val/loss", "val/accuracy"):
        assert len({run["metrics"][metric]["last"] for run in runs}) == 1
    compared = json.loads(swept.daypoint("compare", "--json", *(run["address"] for run in runs)).stdout)
    assert set(compared["config"]) == {"note"}
