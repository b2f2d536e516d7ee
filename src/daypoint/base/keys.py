"""Keys: the name under which MLflow stores a metric or a hyperparameter, and the way back to the original name.

MLflow refuses many names that people use (`precision@k`, `mAP[0.5]`, `/x`), in the middle of a training. The usual
replacement by `_` makes two names one. Here every name has its own key, and every key gives its name back. This module
knows no store and no run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from daypoint.base import files
from daypoint.base.errors import ConfigError

LIMIT = 250
"""Characters in a key, the limit of MLflow."""

_ESCAPE = re.compile(r":([0-9a-f]{1,6}):")
_STATISTIC = re.compile(r"epoch/.+/(mean|variance|min|max|nonfinite)", re.DOTALL)


def mlflow_key(name: str) -> str:
    """What MLflow calls the metric or param `name`. `name_of` gives the name back.

    MLflow takes letters and digits of any script, `_ - . : /` and spaces, as long as the whole cannot be read as a
    path to somewhere else. Any other character is written as its code point between colons: `acc@1` becomes
    `acc:40:1`, and `/x` becomes `:2f:x`. A colon stays as it is unless it would read as the start of such an escape.
    Names that look like the statistics of an epoch (`epoch/loss/mean`) are escaped: `epoch_key` makes those.

    Raises:
        ConfigError: the name is empty or no Unicode text, or its key has more than 250 characters.
    """
    if not name:
        raise ConfigError("metric or param name: expected text, found ''; give it a name")
    if any("\ud800" <= character <= "\udfff" for character in name[:LIMIT]):
        raise ConfigError(
            f"name {name[:60]!r}: expected Unicode text, found half a character in it; correct its encoding"
        )
    key = ""
    if len(name) <= LIMIT:
        for position in reversed(range(len(name))):  # whether a colon is safe depends on what follows it
            character = name[position]
            key = (character if _is_legal(name, position, key) else _escape(character)) + key
        if _STATISTIC.fullmatch(name):
            key = _escape("e") + key[1:]
    if not 0 < len(key) <= LIMIT:
        raise ConfigError(_too_long(name, key or name))
    return key


def _too_long(name: str, key: str) -> str:
    return (
        f"name {name[:60]!r}…: expected at most {LIMIT} characters, as MLflow stores it, found {len(key)}; "
        "make the name shorter"
    )


def _escape(character: str) -> str:
    return f":{ord(character):x}:"


def _is_legal(name: str, position: int, following: str) -> bool:
    """Whether MLflow takes the character at this position; `following` is the key of what comes after it."""
    character = name[position]
    if character == ":":
        return _ESCAPE.match(":" + following) is None
    if character == "/":
        return 0 < position < len(name) - 1 and name[position - 1] != "/"
    if character == ".":
        start, end = name.rfind("/", 0, position) + 1, name.find("/", position)
        segment = name[start : end if end >= 0 else len(name)]
        return segment not in (".", "..") and not (position == 0 and name.startswith(".."))
    return character in "_- " or character.isalnum()


def name_of(key: str) -> str:
    """The name for which `mlflow_key` made this key. A key that came from elsewhere mostly stays as it is."""
    return _ESCAPE.sub(_unescape, key)


def _unescape(match: re.Match[str]) -> str:
    code = int(match[1], 16)
    return chr(code) if code <= 0x10FFFF else match[0]


def given(overrides: Iterable[str]) -> dict[str, str]:
    """What a command line says, by key: `{"optimizer.lr": "0.1"}` for `["+optimizer.lr=0.1"]`."""
    pairs = (text.lstrip("+~").partition("=") for text in overrides)
    return {key: value for key, _, value in pairs}


def mode_of(metric: str) -> str:
    """Whether a metric is better `min` or `max`, where nobody has said: losses and errors go down."""
    return "min" if any(word in metric.lower() for word in ("loss", "error")) else "max"


def epoch_key(name: str, statistic: str) -> str:
    """What MLflow calls a statistic of the metric `name` over an epoch, such as `epoch/loss/mean`.

    Raises:
        ConfigError: the key would be longer than 250 characters.
    """
    key = f"epoch/{mlflow_key(name)}/{statistic}"
    if len(key) > LIMIT:
        raise ConfigError(_too_long(name, key))
    return key


def flatten(config: Mapping[str, Any]) -> dict[str, str]:
    """A nested config as MLflow params: one for each leaf, under its dotted path, in the order of the config.

    Text is kept as it is; None, booleans, numbers and lists of them are JSON (`null`, `true`, `0.01`, `[64, 64]`);
    a list with maps in it gets one param for each of their leaves (`layers.0.size`); empty containers are `{}` and
    `[]`. There is no way back from params alone (`null` may have been text), so the config itself is an artifact.

    Raises:
        ConfigError: two leaves have one path (`a.b` beside `a: {b: …}`), or a key is not text.
    """
    params: dict[str, str] = {}
    for path, value in _leaves(config):
        key = mlflow_key(path)
        if key in params:
            raise ConfigError(
                f"{path}: expected one setting of this name, found two, one with a dot in its key; rename one of them"
            )
        params[key] = (
            value
            if isinstance(value, str)
            else json.dumps(files.without_nonfinite(value), ensure_ascii=False)
        )
    return params


def leaves(config: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of a config that was read from JSON, under the paths of `flatten`, with their values as they are
    (`None`, `0.01`, `[64, 64]`).
    """
    return dict(_leaves(config))


def _leaves(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []

    def visit(node: Mapping[str, Any], prefix: str) -> None:
        for key, value in node.items():
            if type(key) is not str:
                raise ConfigError(
                    f"{prefix.rstrip('.') or 'config'}: expected keys that are text, found {key!r} "
                    f"({type(key).__name__}); put it in quotes"
                )
            if isinstance(value, dict) and value:
                visit(value, f"{prefix}{key}.")
            elif isinstance(value, list | tuple) and _has_map(value):
                visit({str(place): item for place, item in enumerate(value)}, f"{prefix}{key}.")
            else:
                found.append((prefix + key, value))

    visit(config, "")
    return found


def _has_map(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list | tuple) and any(map(_has_map, value)))
