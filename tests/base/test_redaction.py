"""Redaction: a secret reaches nothing that is written, and what is no secret stays as it is."""

from __future__ import annotations

import json
import time

import pytest

from daypoint.base.redaction import redact, redact_overrides, redact_text

SECRET = "TOPSECRET"


@pytest.mark.parametrize(
    "name",
    [
        *("password", "passwd", "passphrase", "db_password", "PASSWORD", "passwordFile"),
        *("secret", "client_secret", "clientSecret", "secrets", "AWS_SECRET_ACCESS_KEY"),
        *("token", "hf_token", "accessToken", "HF_TOKEN", "wandb-token", "refresh_token", "api_tokens"),
        *(
            "api_key",
            "apikey",
            "apiKey",
            "OPENAI_API_KEY",
            "openai_key",
            "WANDB_KEY",
            "access_key",
            "access_key_id",
            "private_key",
            "key",
        ),
        *("credential", "credentials", "auth", "basic_auth", "Authorization", "pass"),
    ],
)
def test_a_text_under_a_secret_name_is_hidden(name):
    assert redact({"outer": [{name: SECRET}]}) == {"outer": [{name: "***"}]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenizer", "bpe"),
        ("tokens", ["a", "b"]),
        ("num_tokens", 5),
        ("max_tokens", 5),
        ("token_dim", 8),
        ("pad_token", "<pad>"),
        ("cls_token", "[CLS]"),
        ("eos_token_id", 2),
        ("use_token", True),
        ("token", 3),
        ("token", {"kind": "word", "dim": 3}),
        ("key_dim", 4),
        ("num_keys", 4),
        ("keys", ["image", "label"]),
        ("key", "image"),
        ("key", "val/accuracy"),
        ("keyboard", "qwerty"),
        ("monkey", "George"),
        ("author", "me"),
        ("authors", ["me"]),
        ("author_name", "me"),
        ("pass_through", "x"),
        ("bypass", "x"),
        ("compass", "north"),
        ("secretary", "x"),
        ("password", None),
        ("save_password", False),
        ("_target_", "torch.optim.SGD"),
        ("lr", 1e-3),
    ],
)
def test_what_is_no_secret_keeps_its_value(name, value):
    assert redact({name: value}) == {name: value}


def test_everything_below_a_secret_name_is_hidden():
    config = {"credentials": {"user": "bob", "pin": 1234, "parts": ["a", "b"], "active": True, "none": None}}
    assert redact(config) == {
        "credentials": {"user": "***", "pin": "***", "parts": ["***", "***"], "active": True, "none": None}
    }


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("postgresql://bob:TOPSECRET@db:5432/runs", "postgresql://***@db:5432/runs"),
        ("http://bob:TOP@SEC/RET@db/x", "http://***@db/x"),
        ("redis://:TOPSECRET@cache", "redis://***@cache"),
        ("https://TOPSECRET0123456789@github.com/a/b", "https://***@github.com/a/b"),
        ("see http://a:TOPSECRET@b and ftp://c:TOPSECRET@d.", "see http://***@b and ftp://***@d."),
        ("https://blob/x?se=2026&sig=TOPSECRET%2F&sp=r", "https://blob/x?se=2026&sig=***&sp=r"),
        ("https://x/?a=1&token=TOPSECRET#frag", "https://x/?a=1&token=***"),
        ("AccountName=me;AccountKey=TOPSECRET;Suffix=net", "AccountName=me;AccountKey=***;Suffix=net"),
        ("Authorization: Bearer TOPSECRET.abc", "Authorization: Bearer ***"),
        ('{"hf_token": "TOP SECRET", "n": 1}', '{"hf_token": "***", "n": 1}'),
        ("{password: TOP SECRET, user: me}", "{password: ***, user: me}"),
        ("the password='TOP SECRET' was refused", "the password='***' was refused"),
        ("ghp_" + "a1B2" * 9, "***"),
        ("key AKIAIOSFODNN7EXAMPLE here", "key *** here"),
    ],
)
def test_secrets_inside_a_text_are_hidden(text, clean):
    assert redact_text(text) == clean
    assert redact({"uri": text}) == {"uri": clean}


@pytest.mark.parametrize(
    "text",
    [
        "http://host:8080/path@v2",
        "ssh://git@github.com/x.git",
        "s3://bucket/key",
        "sqlite:////home/me/a@b/mlflow.db",
        "me@example.com",
        "abfss://container@account.dfs.core.windows.net/x",
        "unexpected token: } at line 3",
        "KeyError: key=image is missing",
        "val/loss=0.5, tokens=512, n_token=3",
        "time: 12:30:45",
    ],
)
def test_an_ordinary_text_stays_as_it_is(text):
    assert redact_text(text) == text


@pytest.mark.parametrize(
    ("override", "clean"),
    [
        ("+tracking.password=TOPSECRET", "+tracking.password=***"),
        ("tracking.password=TOP,SECRET", "tracking.password=***"),
        ("'tracking.password=TOP SECRET'", "'tracking.password=***"),
        ("++tracking.api_key='TOP SECRET'", "++tracking.api_key=***"),
        ("db.credentials.user=TOPSECRET", "db.credentials.user=***"),
        ("+tracking.key=TOPSECRET", "+tracking.key=***"),
        ("tracking={password: TOPSECRET, user: me}", "tracking={password: ***, user: me}"),
        ("tracking={'password':'TOPSECRET'}", "tracking={'password':'***'}"),
        (
            'hydra.sweeper.params={"tracking.password": "TOP,SECRET"}',
            'hydra.sweeper.params={"tracking.password": "***"}',
        ),
        ("tracking.uri=postgresql://u:TOPSECRET@h/d", "tracking.uri=postgresql://***@h/d"),
        ("--password=TOPSECRET", "--password=***"),
        ("optimizer.lr=0.1,0.01", "optimizer.lr=0.1,0.01"),
        ("model.num_tokens=5", "model.num_tokens=5"),
        ("model.pad_token=<pad>", "model.pad_token=<pad>"),
        ("model.use_token=true", "model.use_token=true"),
        ("data.key=image", "data.key=image"),
        ("tracking.password=null", "tracking.password=null"),
        ("~tracking.password", "~tracking.password"),
    ],
)
def test_overrides_lose_their_secrets_and_nothing_else(override, clean):
    assert redact_overrides(["train.py", override, "-m"]) == ["train.py", clean, "-m"]


def test_the_value_after_a_flag_is_hidden():
    arguments = ["run", "--token", SECRET, "--verbose", "--seed", "3", "--password", "x"]
    assert redact_overrides(arguments) == [
        "run",
        "--token",
        "***",
        "--verbose",
        "--seed",
        "3",
        "--password",
        "***",
    ]


def test_known_secrets_are_hidden_wherever_they_occur():
    config = {"url": f"x/{SECRET}/y", "note": "nothing", "list": [SECRET]}
    assert redact(config, secrets=[SECRET, ""]) == {"url": "x/***/y", "note": "nothing", "list": ["***"]}
    assert redact_overrides([f"a={SECRET}"], secrets=[SECRET]) == ["a=***"]
    assert redact_text(f"boom: {SECRET}", secrets=[SECRET]) == "boom: ***"


def test_the_config_itself_is_not_changed():
    config = {"password": SECRET, "list": [{"token": SECRET}]}
    before = json.dumps(config)
    redact(config)
    assert json.dumps(config) == before


@pytest.mark.parametrize(
    "piece",
    [
        "a:",
        "http://",
        "http://a:",
        "://a:@",
        "x-",
        "eyJ",
        "=:",
        "password",
        "a=",
        "{'",
        "-",
        "sk-",
        "Bearer ",
    ],
)
def test_hostile_text_takes_linear_time(piece):
    text = piece * (500_000 // len(piece))
    started = time.perf_counter()
    redact({"password": [text], "note": text})
    redact_overrides([text])
    assert time.perf_counter() - started < 10
