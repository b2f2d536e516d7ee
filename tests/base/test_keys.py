import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric

from daypoint.base.errors import ConfigError
from daypoint.base.keys import LIMIT, epoch_key, flatten, leaves, mlflow_key, mode_of, name_of

# Text with much of what is special here: escapes, dots and slashes at every place, epoch names, NUL.
NAMES = st.one_of(
    st.text(min_size=1, max_size=30),
    st.text("ae01f:./ @\0é", min_size=1, max_size=30),
    st.lists(
        st.sampled_from(["epoch", "/", "mean", ":", "40", "3a", "..", ".", "@", "x", "損"]), min_size=1
    ).map("".join),
)


def accepted(key):
    """Whether MLflow itself takes it as the name of a metric."""
    _validate_metric(key, 1.0, 0, 0)
    return True


@given(NAMES)
def test_a_key_gives_its_name_back(name):
    assert name_of(mlflow_key(name)) == name


@given(NAMES)
def test_mlflow_accepts_every_key(name):
    assert accepted(mlflow_key(name))


@given(NAMES, st.sampled_from(["mean", "variance", "min", "max", "nonfinite"]))
def test_a_statistic_of_an_epoch_has_a_key_that_no_metric_can_have(name, statistic):
    key = epoch_key(name, statistic)
    assert accepted(key)
    assert mlflow_key(name_of(key)) != key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("loss", "loss"),
        ("val/accuracy", "val/accuracy"),
        ("損失/é 2", "損失/é 2"),
        ("loss:x", "loss:x"),
        ("a:b:c", "a:3a:b:c"),  # :b: would read as an escape
        ("acc@1", "acc:40:1"),
        ("mAP[0.5]", "mAP:5b:0.5:5d:"),
        ("/x", ":2f:x"),
        ("a//b", "a/:2f:b"),
        ("a/", "a:2f:"),
        ("..", ":2e::2e:"),
        ("a/./b", "a/:2e:/b"),
        ("..x", ":2e:.x"),
        ("...", ":2e:.."),
        ("line\n", "line:a:"),
        ("\0", ":0:"),
        (":40:", ":3a:40:"),
        ("epoch/loss/mean", ":65:poch/loss/mean"),
        ("epoch/loss", "epoch/loss"),
    ],
)
def test_keys_are_readable(name, key):
    assert mlflow_key(name) == key


def test_names_that_a_replacement_would_merge_stay_apart():
    names = [
        "acc@1",
        "acc_at_1",
        "acc_1",
        "mAP[0.5]",
        "mAP_0.5_",
        "loss(train)",
        "a//b",
        "a/b",
        "/x",
        "x",
        "Loss",
        "loss",
    ]
    assert len({mlflow_key(name) for name in names}) == len(names)


def test_an_empty_name_is_refused():
    with pytest.raises(ConfigError, match="expected text, found ''"):
        mlflow_key("")


def test_half_a_character_is_refused():
    with pytest.raises(ConfigError, match="expected Unicode text"):
        mlflow_key("loss\ud800")


@pytest.mark.parametrize("name", ["x" * (LIMIT + 1), "@" * 63, "x" * 10_000_000])
def test_a_name_that_does_not_fit_is_refused_with_limit_and_remedy(name):
    with pytest.raises(ConfigError, match=r"at most 250 characters.*found \d+; make the name shorter"):
        mlflow_key(name)


def test_a_name_of_exactly_the_limit_fits():
    assert mlflow_key("x" * LIMIT) == "x" * LIMIT


def test_a_name_too_long_for_its_statistics_is_refused_there():
    with pytest.raises(ConfigError, match="at most 250 characters"):
        epoch_key("x" * 240, "variance")


# ---------------------------------------------------------------- configs


def test_every_leaf_is_one_param_under_its_dotted_path():
    config = {
        "model": {"_target_": "torch.nn.Linear", "sizes": [64, 64], "dropout": None},
        "optimizer": {"lr": 1e-5, "betas": [0.9, 0.95], "amsgrad": True, "foreach": "true"},
        "layers": [{"size": 3}, {"size": 4, "act": "relu"}],
        "seed": 0,
    }
    assert flatten(config) == {
        "model._target_": "torch.nn.Linear",
        "model.sizes": "[64, 64]",
        "model.dropout": "null",
        "optimizer.lr": "1e-05",
        "optimizer.betas": "[0.9, 0.95]",
        "optimizer.amsgrad": "true",
        "optimizer.foreach": "true",
        "layers.0.size": "3",
        "layers.1.size": "4",
        "layers.1.act": "relu",
        "seed": "0",
    }


def test_empty_containers_are_kept():
    assert flatten({"a": {}, "b": [], "c": {"d": {}}, "e": [{}, 1]}) == {
        "a": "{}",
        "b": "[]",
        "c.d": "{}",
        "e.0": "{}",
        "e.1": "1",
    }


def test_an_empty_config_has_no_params():
    assert flatten({}) == {}


def test_lists_of_lists_are_one_value():
    assert flatten({"kernel": [[1, 2], [3, None]]}) == {"kernel": "[[1, 2], [3, null]]"}


def test_what_json_cannot_say_is_said_in_words():
    assert flatten({"a": float("inf"), "b": [float("nan")]}) == {"a": '"Infinity"', "b": '["NaN"]'}


def test_text_of_any_script_is_kept_as_it_is():
    assert flatten({"name": "мой / 損失", "list": ["é"]}) == {"name": "мой / 損失", "list": '["é"]'}


def test_two_settings_of_one_name_are_refused():
    with pytest.raises(ConfigError, match=r"model\.lr: expected one setting of this name"):
        flatten({"model": {"lr": 0.1}, "model.lr": 0.2})


@pytest.mark.parametrize("key", [1, None, True, 1.5])
def test_a_key_that_is_not_text_is_refused(key):
    with pytest.raises(ConfigError, match="model: expected keys that are text, found"):
        flatten({"model": {key: "a"}})


def test_setting_names_are_made_fit_for_mlflow():
    assert flatten({"a@b": {"c": 1}}) == {"a:40:b.c": "1"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda leaf: (
            st.lists(leaf, max_size=3)
            | st.dictionaries(st.text("abc", min_size=1, max_size=3), leaf, max_size=3)
        ),
    )
)
def test_values_other_than_text_are_json(value):
    for text in flatten({"x": {"y": value} if not isinstance(value, str) else {"y": [value]}}).values():
        assert isinstance(text, str)
    if not isinstance(value, str | list | dict):
        json.loads(flatten({"x": value})["x"])


JSON_CONFIGS = st.dictionaries(
    st.sampled_from("abcd"),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from(["x", "null", ""])),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
        ),
        max_leaves=12,
    ),
    max_size=3,
)


@given(JSON_CONFIGS)
def test_leaves_are_those_of_flatten_with_their_types(config):
    found = {k: v if isinstance(v, str) else json.dumps(v) for k, v in leaves(config).items()}
    assert found == flatten(config)


@pytest.mark.parametrize(("metric", "mode"), [("val/loss", "min"), ("Error", "min"), ("val/accuracy", "max")])
def test_losses_and_errors_are_better_when_small(metric, mode):
    assert mode_of(metric) == mode


def test_a_key_from_elsewhere_that_is_no_escape_stays_as_it_is():
    assert name_of("acc:ffffff:") == "acc:ffffff:"
