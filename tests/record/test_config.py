"""Settings and configs: one clear message for what cannot work, plain data for what can."""

import datetime
import itertools
import math
import pathlib
import sys

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import daypoint
from daypoint.base.errors import ConfigError
from daypoint.hydra import app as hydra_app
from daypoint.record import config


def test_a_section_that_is_not_there_has_its_defaults():
    assert config.section({}, "tracking") == config.Tracking()


def test_a_misspelt_setting_is_named_with_the_nearest_one():
    with pytest.raises(
        ConfigError, match=r"tracking\.experimnt: no such setting; did you mean tracking\.experiment\?"
    ):
        config.section({"tracking": {"experimnt": "x"}}, "tracking")


def test_a_setting_of_the_wrong_type_is_named():
    with pytest.raises(ConfigError, match=r"trainer\.epochs.*'many'"):
        config.section({"trainer": {"epochs": "many"}}, "trainer")


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("trainer", "epochs", -1, r"trainer\.epochs: expected a whole number >= 0, found -1"),
        ("trainer", "accumulate", 0, r"trainer\.accumulate: expected a whole number >= 1"),
        ("trainer", "keep", 0, r"trainer\.keep"),
        ("trainer", "device", "gpu", r"trainer\.device: expected auto, cpu"),
        ("trainer", "precision", "fp8", r"trainer\.precision: expected fp32, bf16 or fp16, found 'fp8'"),
        ("trainer", "mode", "most", r"trainer\.mode"),
        ("trainer", "clip_norm", 0.0, r"trainer\.clip_norm"),
        ("tracking", "on_nonfinite", "ignore", r"tracking\.on_nonfinite: expected record, warn or stop"),
        ("tracking", "wait_seconds", -1.0, r"tracking\.wait_seconds"),
        ("tracking", "wait_seconds", math.nan, r"tracking\.wait_seconds"),
        ("tracking", "timezone", "Mars", r"tracking\.timezone"),
        ("tracking", "experiment", "", r"tracking\.experiment: expected 1 to 500 characters, found 0"),
        (
            "tracking",
            "experiment",
            "x" * 501,
            r"tracking\.experiment: expected 1 to 500 characters, found 501",
        ),
        ("tracking", "tags", {"team": None}, r"tracking\.tags\.team: "),
        ("tracking", "name", "x" * 251, r"tracking\.name: expected at most 250 characters, found 251"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_its_key(section, key, value, message):
    with pytest.raises(ConfigError, match=message):
        config.section({section: {key: value}}, section)


def test_a_number_given_as_experiment_name_is_text():
    assert config.section({"tracking": {"experiment": 20240131}}, "tracking").experiment == "20240131"
    assert config.section({"tracking": {"experiment": "мой/экс"}}, "tracking").experiment == "мой/экс"


def test_every_missing_value_is_named_at_once():
    with pytest.raises(ConfigError, match=r"data\.path, data\.target: expected a value, found \?\?\?"):
        config.resolve(OmegaConf.create({"data": {"path": "???", "target": "???"}}))


def test_an_interpolation_that_leads_nowhere_is_named():
    with pytest.raises(ConfigError, match=r"model\.h: .*'hidden' not found"):
        config.resolve(OmegaConf.create({"model": {"h": "${hidden}"}}))


def test_a_resolver_is_asked_once_and_the_config_itself_holds_its_answer():
    asked = []
    OmegaConf.register_new_resolver("test.asked", lambda: asked.append(1) or len(asked), replace=True)
    cfg = OmegaConf.create({"a": "${test.asked:}", "b": "${a}"})
    plain = config.resolve(cfg)
    n = len(asked)
    assert plain == {"a": cfg.a, "b": cfg.b}
    assert config.resolve(cfg) == plain
    assert len(asked) == n


def test_text_that_looks_like_an_interpolation_stays_text():
    assert config.resolve(OmegaConf.create({"a": r"\${x}"})) == {"a": "${x}"}


def test_a_key_that_is_no_text_is_refused():
    with pytest.raises(ConfigError, match=r"classes\.1: expected a key that is text"):
        config.resolve(OmegaConf.create({"classes": {1: "a", "1": "b"}}))


def test_values_that_are_not_plain_data_are_refused():
    with pytest.raises(ConfigError, match=r"a\.0: .*found (bytes|PosixPath)"):
        config.resolve(OmegaConf.create({"a": [b"x"]}))


def test_a_plain_dict_is_as_good_as_a_hydra_config():
    plain = config.resolve({"lr": 0.1, "layers": [1, 2], "clip": math.inf, "none": None, "deep": {"x": True}})
    assert plain == {"lr": 0.1, "layers": [1, 2], "clip": math.inf, "none": None, "deep": {"x": True}}


def test_fill_puts_what_was_found_where_the_config_says_null_or_auto():
    cfg = OmegaConf.create({"data": {"input_shape": None, "task": "auto", "outputs": 10}})
    config.fill(cfg, "data", input_shape=(1, 8, 8), task="classification", outputs=10)
    assert cfg.data == {"input_shape": [1, 8, 8], "task": "classification", "outputs": 10}


def test_fill_refuses_what_contradicts_the_config():
    cfg = OmegaConf.create({"data": {"outputs": 10}})
    with pytest.raises(ConfigError, match=r"data\.outputs: the config says 10, the data says 3"):
        config.fill(cfg, "data", outputs=3)


@pytest.mark.parametrize("name", ["", "mlflow.runName", "date", "daypoint.uid", "git.commit"])
def test_a_tag_that_is_not_the_users_own_is_refused(name):
    with pytest.raises(ConfigError, match=r"tracking\.tags: expected names of your own"):
        config.section({"tracking": {"tags": {name: "x"}}}, "tracking")


def test_no_text_is_evaluated_whatever_stands_before_its_interpolation(monkeypatch):
    monkeypatch.setenv("TOKEN", "hunter2")
    pieces = ("\\", "${oc.env:TOKEN}", "${", "}", "$", "{", "a", " ", ":")
    for length in range(1, 5):
        texts = ["".join(chosen) for chosen in itertools.product(pieces, repeat=length)]
        read = OmegaConf.create(config.to_yaml(config.escaped({"texts": texts})).decode())
        assert OmegaConf.to_container(read, resolve=True)["texts"] == texts


def test_a_part_of_the_config_without_a_target_cannot_be_made_into_anything():
    cfg = OmegaConf.create({"model": {"width": 3, "outputs": 7}, "loss": {}})
    with pytest.raises(
        ConfigError, match=r"^model: expected a _target_.*found width, outputs; name the class"
    ):
        daypoint.instantiate(cfg.model)
    with pytest.raises(ConfigError, match=r"loss: expected a _target_.*found nothing"):
        daypoint.instantiate(cfg.loss)


@pytest.mark.parametrize("settings", [{"a": {"b": "caf\udce9"}}, {"a": [{"caf\udce9": 1}]}])
def test_bytes_of_a_command_line_that_are_no_text_are_refused(settings):
    with pytest.raises(ConfigError, match=r"a\..*: expected Unicode text, found 'caf\\udce9'"):
        config.resolve(settings)


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (torch.tensor(0.1), "found Tensor; give its number, lr.item()"),
        (np.float32(0.1), "found float32; give its number, lr.item()"),
        (torch.ones(3), "found Tensor; give its numbers as a list, .tolist()"),
        (np.ones(3), "found ndarray; give its numbers as a list, .tolist()"),
        (datetime.date(2026, 3, 28), "found date; write it as text"),
        (pathlib.Path("x"), "write it as text"),
    ],
)
def test_a_value_that_is_no_plain_data_says_what_to_give_instead(value, remedy):
    with pytest.raises(ConfigError) as refused:
        config.resolve({"optimizer": {"lr": value}})
    assert str(refused.value).startswith("optimizer.lr: expected text, a number, true,")
    assert str(refused.value).endswith(remedy)


def test_ctrl_c_is_a_word_unless_somebody_has_a_hook_of_ones_own(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    hydra_app.shorten_interrupts()
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr().err == "interrupted\n"
    own = lambda *given: None  # noqa: E731
    monkeypatch.setattr(sys, "excepthook", own)
    hydra_app.shorten_interrupts()
    assert sys.excepthook is own
