"""The picture of a sweep."""

import pytest
from drawn import words
from filed_sweeps import manifest

from daypoint.plots import sweep as sweep_plot


def draw(tmp_path, *arguments, **options):
    sweep_plot.draw_sweep(manifest(*arguments, **options), tmp_path / "a.png")
    sweep_plot.draw_sweep(manifest(*arguments, **options), tmp_path / "a.svg")
    return words(tmp_path / "a.svg")


def test_each_hyperparameter_has_a_panel_with_its_values(tmp_path):
    said = draw(tmp_path, {"optimizer.lr": ["0.1", "0.001"], "model": ["mlp", "cnn"]})
    for text in (
        "optimizer.lr",
        "model",
        "0.1",
        "0.001",
        "mlp",
        "cnn",
        "val/accuracy (max is best)",
        "one job",
    ):
        assert text in said


def test_jobs_that_differ_in_a_seed_are_also_a_mean_and_a_deviation(tmp_path):
    said = draw(tmp_path, {"lr": ["1", "2"], "seed": ["1", "2"]}, lambda lr, seed: float(lr) * float(seed))
    assert "mean ± standard deviation over seeds" in said
    assert "seed" not in said
    assert "best: 4 (job 3)" in said


def test_a_sweep_of_seeds_alone_shows_their_spread(tmp_path):
    assert "over 2 seeds: 1.5 ± 0.71" in draw(tmp_path, {"trainer.seed": ["1", "2"]}, float)


def test_jobs_without_a_value_are_counted(tmp_path):
    facts = {"0": {"status": "FAILED", "value": None}, "1": {"value": float("nan")}}
    assert "no value: 1 failed, 1 not finite" in draw(tmp_path, {"lr": ["1", "2", "3"]}, float, **facts)


def test_values_that_span_decades_lie_on_a_logarithmic_axis():
    assert sweep_plot._axis("lr", ["0.1", "0.001"]).is_log
    assert not sweep_plot._axis("width", ["16", "64"]).is_log
    assert not sweep_plot._axis("dropout", ["0", "0.5"]).is_log
    assert not sweep_plot._axis("model", ["mlp", "1"]).is_number


@pytest.mark.parametrize(
    "space", [{}, {"lr": ["1"]}, {f"k{i}": ["1", "2"] for i in range(4)}, {"$x": ["_a", "<b>", "nan"]}]
)
def test_any_sweep_can_be_drawn(tmp_path, space):
    draw(tmp_path, space)


def test_a_sweep_without_jobs_says_so(tmp_path):
    sweep_plot.draw_sweep({**manifest({}), "jobs": {}}, tmp_path / "a.svg")
    assert "no values yet" in words(tmp_path / "a.svg")


def test_a_job_stands_where_its_value_is_and_jobs_at_one_place_have_a_ring(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn, plot = [], Axes.plot

    def watch(self, x, y, *rest, **options):
        drawn.append((self.get_xlabel(), list(x), list(y)))
        return plot(self, x, y, *rest, **options)

    monkeypatch.setattr(Axes, "plot", watch)
    worth = {"linear": 0.5, "mlp": 0.7, "cnn": 0.7}
    said = draw(
        tmp_path, {"lr": ["0.1", "0.2"], "model": list(worth)}, lambda lr, model: worth[model] - float(lr)
    )
    places = {x for label, xs, _ in drawn for x in xs if label == "lr"}
    assert places == {0.1, 0.2}
    assert "several jobs at one place" in said


def test_equal_best_jobs_are_all_the_best(tmp_path):
    said = draw(tmp_path, {"lr": ["1", "2", "3"]}, lambda lr: min(float(lr), 2.0))
    assert "best: 2 (jobs 1, 2)" in said
