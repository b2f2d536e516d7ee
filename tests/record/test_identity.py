"""Identity: run.json is read or refused, a config's hash is over what matters, a card notices every edit."""

from __future__ import annotations

import hashlib
import json
import math
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypoint.base.errors import AddressError, CheckpointError, RunError
from daypoint.record import identity

RECORD = {
    "format": "daypoint/run/1",
    "uid": "00112233aabbccdd",
    "name": "20260328-141502 mlp-adamw",
    "experiment": "digits",
    "day": "20260328",
    "timezone": "Europe/Berlin",
    "host": "here",
    "device": "cpu",
    "config": {
        "model": {"_target_": "torch.nn.Linear", "in_features": 64},
        "trainer": {"seed": 7, "device": "cpu"},
    },
    "monitor": {"metric": "val/accuracy", "mode": "max"},
    "git": {"commit": "abc", "dirty": False},
    "versions": {"torch": "2.13.0"},
    "data": {"name": "digits", "fingerprint": "ff", "rows": 1797},
}
LISTED = {"model_20260328.safetensors": {"bytes": 3, "sha256": "00"}}


# ---------------------------------------------------------------- run.json


def test_a_record_comes_back_as_it_was_written(tmp_path):
    record = {**RECORD, "config": {"clip": math.inf, "seed": 2**63, "none": None}}
    identity.write_run(tmp_path, record)
    assert identity.read_run(tmp_path) == record


def test_run_json_is_strict_json(tmp_path):
    def refuse(token):
        raise AssertionError(token)

    identity.write_run(tmp_path, {**RECORD, "config": {"clip": math.inf, "nan": math.nan}})
    json.loads((tmp_path / "run.json").read_bytes(), parse_constant=refuse)


def test_a_directory_without_run_json_is_no_run(tmp_path):
    for directory in (tmp_path, tmp_path / "absent", tmp_path / "file" / "below"):
        (tmp_path / "file").touch()
        with pytest.raises(AddressError, match="expected a run directory, found no run"):
            identity.read_run(directory)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not strict JSON"),
        (b'{"format": "daypoint/run/1", "uid": "a', "not strict JSON"),
        (b'{"x": NaN}', "not strict JSON"),
        (b"[1]", "a JSON list"),
        (b"\x00" * 100, "not strict JSON"),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "nested too deeply"),
        (b'{"format": "daypoint/run/2", "uid": "a"}', "newer daypoint"),
        (b'{"uid": "a"}', "found None"),
        (b'{"format": "daypoint/run/1"}', "no proper uid"),
        (b" " * (32 * 2**20 + 1), "more than 32 MiB"),
    ],
)
def test_a_damaged_run_json_is_named(tmp_path, content, said):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(RunError, match=said) as caught:
        identity.read_run(tmp_path)
    assert str(tmp_path / "run.json") in str(caught.value)


def test_identity_is_cheap_to_import():
    script = "import sys, daypoint.record.identity; print({'torch', 'numpy', 'mlflow', 'hydra', 'omegaconf'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# ---------------------------------------------------------------- the hash of a config

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abcd", max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
configs = st.dictionaries(st.text("abcd", max_size=3), plain, max_size=5)


def shuffled(value, generator):
    if isinstance(value, dict):
        keys = list(value)
        generator.shuffle(keys)
        return {key: shuffled(value[key], generator) for key in keys}
    return [shuffled(item, generator) for item in value] if isinstance(value, list) else value


@given(configs, st.integers())
@settings(max_examples=100, deadline=None)
def test_the_order_of_keys_does_not_matter(config, seed):
    assert identity.config_sha256(config) == identity.config_sha256(shuffled(config, random.Random(seed)))


@given(configs)
@settings(max_examples=50, deadline=None)
def test_the_hash_outlives_a_file(config):
    from daypoint.base import files

    assert identity.config_sha256(config) == identity.config_sha256(files.loads(files.dumps(config)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"lr": 1e-5}, {"lr": 0.00001}),
        ({"a": (1, 2)}, {"a": [1, 2]}),
        ({"a": math.nan}, {"a": math.nan}),
        ({"lr": 1, "tracking": {"uri": "a"}}, {"lr": 1, "tracking": {"uri": "b"}}),
        ({"trainer": {"seed": 1, "device": "cpu"}}, {"trainer": {"seed": 1, "device": "cuda"}}),
        ({"lr": 1, "hydra": {}}, {"lr": 1}),
    ],
)
def test_what_asks_for_the_same_training_has_the_same_hash(one, other):
    assert identity.config_sha256(one) == identity.config_sha256(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"lr": 0.1}, {"lr": 0.2}),
        ({"n": 1}, {"n": 1.0}),
        ({"n": 1}, {"n": True}),
        ({"n": 1}, {"n": "1"}),
        ({"n": None}, {}),
        ({"n": 0.0}, {"n": -0.0}),
        ({"n": 2**60}, {"n": 2**60 + 1}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"trainer": {"seed": 1}}, {"trainer": {"seed": 2}}),
        ({"tracking_rate": 1}, {"tracking_rate": 2}),
        ({"model": {"tracking": 1}}, {"model": {"tracking": 2}}),
        ({"a.b": 1}, {"a": {"b": 1}}),
    ],
)
def test_what_asks_for_another_training_has_another_hash(one, other):
    assert identity.config_sha256(one) != identity.config_sha256(other)


def test_the_keys_to_ignore_can_be_chosen():
    one, other = {"a": {"b": 1, "c": 2}}, {"a": {"b": 5, "c": 2}}
    assert identity.config_sha256(one, ["a.b"]) == identity.config_sha256(other, ["a.b"])
    assert identity.config_sha256(one, ["a.c"]) != identity.config_sha256(other, ["a.c"])


def test_what_is_not_plain_data_is_named():
    with pytest.raises(TypeError, match=r"\$\.model\.size"):
        identity.config_sha256({"model": {"size": object()}})


# ---------------------------------------------------------------- the card


def card_of(**changes):
    arguments = {
        "step": 30,
        "epoch": 2,
        "attempt": 1,
        "metrics": {"val/accuracy": 0.97},
        "parent": None,
        **changes,
    }
    return identity.make_card(RECORD, **arguments)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model_20260328.json"
    path.write_bytes(identity.seal(card_of(), LISTED))
    return path


def test_a_card_comes_back_as_it_was_sealed(path):
    card = identity.read_card(path)
    for key in (
        "uid",
        "name",
        "experiment",
        "day",
        "timezone",
        "config",
        "monitor",
        "git",
        "versions",
        "host",
        "data",
    ):
        assert card[key] == RECORD[key]
    assert (card["step"], card["epoch"], card["attempt"], card["seed"]) == (30, 2, 1, 7)
    assert card["metrics"] == {"val/accuracy": 0.97}
    assert card["files"] == LISTED
    assert card["config_sha256"] == identity.config_sha256(RECORD["config"])


def test_the_time_is_told_in_the_runs_zone_and_in_utc():
    card = card_of()
    assert card["time"].endswith(("+01:00", "+02:00"))
    assert card["time_utc"].endswith("+00:00")


def test_metrics_that_json_cannot_hold_come_back_as_numbers(tmp_path):
    metrics = {"nan": math.nan, "inf": -math.inf, "big": 2**70, "flag": True, "one": 1, "one.0": 1.0}
    (tmp_path / "card.json").write_bytes(identity.seal(card_of(metrics=metrics), LISTED))
    back = identity.read_card(tmp_path / "card.json")["metrics"]
    assert math.isnan(back.pop("nan"))
    assert back == {key: value for key, value in metrics.items() if key != "nan"}
    assert [type(back[key]) for key in ("flag", "one", "one.0")] == [bool, int, float]


def leaves(value, path=()):
    if isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], (*path, key))
    else:
        yield path


def test_an_edit_of_any_value_in_the_card_is_noticed(path):
    text = path.read_text()
    places = list(leaves(json.loads(text)))
    assert len(places) > 30
    for place in places:
        card = json.loads(text)
        inner = card
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = "edited"
        path.write_text(json.dumps(card))
        with pytest.raises(CheckpointError, match=r"model_20260328\.json"):
            identity.read_card(path)


def test_a_value_added_or_removed_is_noticed(path):
    card = json.loads(path.read_text())
    path.write_text(json.dumps({**card, "note": "mine"}))
    with pytest.raises(CheckpointError, match="edited"):
        identity.read_card(path)
    path.write_text(json.dumps({k: v for k, v in card.items() if k != "seed"}))
    with pytest.raises(CheckpointError, match="edited"):
        identity.read_card(path)


def test_an_edited_hyperparameter_is_told_apart(path):
    path.write_text(path.read_text().replace('"in_features": 64', '"in_features": 65'))
    with pytest.raises(CheckpointError, match="hyperparameter"):
        identity.read_card(path)


def test_another_layout_of_the_same_card_is_no_edit(path):
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert identity.read_card(path)["step"] == 30


@pytest.mark.parametrize("missing", ["uid", "day", "step", "config", "metrics", "files", "config_ignored"])
def test_a_sealed_card_without_what_a_card_needs_is_refused(tmp_path, missing):
    # The seal is no signature: whoever edits a card can seal it again.
    card = card_of() | {"files": LISTED}
    broken = {key: value for key, value in card.items() if key != missing}
    (tmp_path / "card.json").write_bytes(reseal(broken))
    with pytest.raises(CheckpointError, match=missing):
        identity.read_card(tmp_path / "card.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("day", "../../etc"),
        ("step", "30"),
        ("step", None),
        ("metrics", {"loss": "abc"}),
        ("metrics", {"loss": None}),
        ("files", {"x": []}),
        ("monitor", "accuracy"),
    ],
)
def test_a_sealed_card_with_values_of_the_wrong_kind_is_refused(tmp_path, key, value):
    (tmp_path / "card.json").write_bytes(reseal(card_of() | {"files": LISTED, key: value}))
    with pytest.raises(CheckpointError, match=key):
        identity.read_card(tmp_path / "card.json")


def reseal(card):
    content = identity._canonical(card)
    return json.dumps({**json.loads(content), "card_sha256": hashlib.sha256(content).hexdigest()}).encode()


def test_a_config_that_does_not_match_its_hash_is_refused_even_when_sealed(tmp_path):
    card = {**card_of(), "files": LISTED, "config": {"model": {"_target_": "os.system"}}}
    (tmp_path / "card.json").write_bytes(reseal(card))
    with pytest.raises(CheckpointError, match="config_sha256"):
        identity.read_card(tmp_path / "card.json")


def test_a_missing_card_and_a_later_format_are_told(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        identity.read_card(tmp_path / "card.json")
    (tmp_path / "card.json").write_text('{"format": "daypoint/card/9"}')
    with pytest.raises(CheckpointError, match="newer daypoint"):
        identity.read_card(tmp_path / "card.json")


def test_a_tensor_never_reaches_a_card():
    with pytest.raises(TypeError, match=r"\$\.metrics\.loss"):
        identity.seal(card_of(metrics={"loss": object()}), LISTED)
