"""Read Hydra's overrides on the command line: as text, as values, and what is wrong with them.

It knows neither the config nor a run, and never resolves a `${...}` in an override.
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
    """Warn of a key that is given twice: Hydra takes the last one without saying so."""
    given: dict[str, list[str]] = {}
    for text in overrides:
        if not text.startswith("~"):  # `~scheduler +scheduler=…` replaces it
            given.setdefault(text.lstrip("+").partition("=")[0], []).append(text)
    for key, texts in sorted(given.items()):
        if len(texts) > 1:
            shown = ", ".join(redact_overrides(texts))
            print(
                f"warning: {key} is given {len(texts)} times ({shown}); the last one counts", file=sys.stderr
            )


def space_of(overrides: list[str]) -> dict[str, list[str]]:
    """The values of each override that has several, as text; a range to be searched is one text."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    space: dict[str, list[str]] = {}
    for text in overrides:
        with contextlib.suppress(HydraException):  # Hydra itself is about to say what is wrong with it
            found = OverridesParser.create().parse_override(text)
            if found.is_sweep_override():
                key, whole = found.get_key_element().lstrip("+"), [text.partition("=")[2]]
                values = found.sweep_string_iterator() if found.is_discrete_sweep() else whole
                hidden = redact_overrides([f"{key}={value}" for value in values])
                space[key] = [item.partition("=")[2] for item in hidden]
    return space


def in_one_spelling(overrides: list[str]) -> list[str] | None:
    """The overrides in one spelling, so that 0.1 and 0.10 are equal; None where a value is hidden."""
    if any(HIDDEN in text for text in overrides):
        return None
    return sorted(f"{key}={value!r}" for key, value in parsed(overrides))
