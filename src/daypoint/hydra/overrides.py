"""What stands on the command line: Hydra's overrides, as they were given, as values, and what is wrong with them.

It reads texts, and knows neither config nor run. A `${...}` in an override is never resolved here. One number: a millisecond
to parse one.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
import sys
from typing import Any

from omegaconf import ListConfig, OmegaConf

from daypoint.base.errors import ConfigError
from daypoint.base.redaction import HIDDEN, redact_overrides


def as_given(overrides: ListConfig) -> list[str]:
    """Overrides as they stand on the command line. Taken one by one, `lr=${base}` would be interpolated, or fail."""
    return list(OmegaConf.to_container(overrides, resolve=False))


def parsed(overrides: list[str]) -> list[tuple[str, Any]]:
    """Overrides as (key, value); a deleted key has the value None."""
    if not overrides:
        return []
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(overrides)
    return [(item.key_or_group, None if item.is_delete() else item.value()) for item in parsed]


def check_quotes(arguments: list[str]) -> None:
    """Say how to quote a value that Hydra cannot read as it stands (`resume=epoch=1-step=2.ckpt`).

    Raises:
        ConfigError: there is one, and quotes help.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException

    parser = OverridesParser.create()
    for before, text in itertools.pairwise(["", *arguments]):
        key, equals, value = text.partition("=")
        if text.startswith(("-", "~")) or not equals or value.startswith(("[", "{", "'", '"')):
            continue
        if before.startswith("-") and "=" not in before and before not in ("-m", "--multirun", "-r", "--run"):
            continue  # what an option takes, maybe another program's
        if re.match(r"\w+\(", value):
            continue  # meant as a function; Hydra says what is wrong with it
        try:
            parser.parse_overrides([text])
        except OverrideParseException:
            parts = ["'" + part.replace("'", r"\'") + "'" for part in value.split(",")]
            quoted = f"{key}={','.join(parts)}"
            with contextlib.suppress(OverrideParseException):
                parser.parse_overrides([quoted])
                text, quoted = redact_overrides([text, quoted])
                typed = shlex.quote(quoted) if set(quoted) & set('"$`!\\') else f'"{quoted}"'
                raise ConfigError(
                    f"{text}: expected quotes around a value with such characters; write {typed}"
                ) from None


def flag_repeated_keys(overrides: list[str]) -> None:
    """Hydra takes the last of two overrides of one key, without a word."""
    overrides = [
        text for text in overrides if not text.startswith("~")
    ]  # `~scheduler +scheduler=…` replaces it
    keys = [text.lstrip("+").partition("=")[0] for text in overrides]
    for key in sorted({key for key in keys if keys.count(key) > 1}):
        given = ", ".join(
            redact_overrides([text for text in overrides if text.lstrip("+").partition("=")[0] == key])
        )
        print(
            f"warning: {key} is given {keys.count(key)} times ({given}); the last one counts", file=sys.stderr
        )


def space_of(overrides: list[str]) -> dict[str, list[str]]:
    """The values of each override that has several, as text; a range to be searched is one text."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    space: dict[str, list[str]] = {}
    for text in overrides:
        with contextlib.suppress(HydraException):  # Hydra itself is about to say what is wrong with it
            override = OverridesParser.create().parse_override(text)
            if override.is_sweep_override():
                key = override.get_key_element().lstrip("+")
                values = (
                    [*override.sweep_string_iterator()]
                    if override.is_discrete_sweep()
                    else [text.partition("=")[2]]
                )
                hidden = redact_overrides([f"{key}={value}" for value in values])
                space[key] = [item.partition("=")[2] for item in hidden]
    return space


def in_one_spelling(overrides: list[str]) -> list[str] | None:
    """The overrides in one spelling, so that 0.1 and 0.10 are one; None where a value is hidden. Parsed once a job."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if any(HIDDEN in text for text in overrides):
        return None
    parsed = OverridesParser.create().parse_overrides(overrides)
    return sorted(f"{item.key_or_group}={None if item.is_delete() else item.value()!r}" for item in parsed)
