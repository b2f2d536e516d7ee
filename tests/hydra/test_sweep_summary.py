"""What a person sees when a sweep is over."""

from filed_sweeps import manifest

from daypoint.hydra.sweep_summary import print_summary


def test_equal_best_jobs_are_all_marked(tmp_path, capsys):
    found = {**manifest({"lr": ["1", "2", "3"]}, lambda lr: min(float(lr), 2.0)), "stopped": False}
    for number, job in found["jobs"].items():
        job["directory"] = number
    print_summary(tmp_path / "outputs" / "20260328" / "sweep-150233-654321", found)
    said = capsys.readouterr().out
    assert [line.split()[2:4] for line in said.splitlines() if "FINISHED" in line] == [
        ["1", "lr=1"], ["2", "*"], ["2", "*"],
    ]  # fmt: skip
    assert "* the best of 3 jobs, which are equal" in said
    assert f"daypoint show 20260328/sweep-150233-654321/2 --outputs {tmp_path}/outputs" in said


def test_a_job_that_was_tried_again_has_its_directory_in_the_table(tmp_path, capsys):
    found = {**manifest({"lr": ["1"]}), "stopped": False}
    found["jobs"]["0"]["directory"] = "0-2"
    print_summary(tmp_path / "outputs" / "20260328" / "sweep-150233-654321", found)
    assert "lr=1       0-2" in capsys.readouterr().out
