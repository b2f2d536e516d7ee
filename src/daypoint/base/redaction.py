"""Redaction: replaces passwords, tokens and keys by `***` in whatever is about to be written or shown.

What is a secret is told by the name it stands under (`tracking.password`, `apiKey`, `HF_TOKEN`), by its place in
a URL (`https://user:pass@host`, `?token=…`), or by the well-known look of a provider's key. Names are compared
word by word, so `tokenizer`, `num_tokens`, `pad_token`, `key_dim` and `author` keep their values.

This module takes plain data and returns plain data. It knows no file and no config library.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from itertools import pairwise
from typing import Any

HIDDEN = "***"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Whatever stands under one of these, or below it, is secret.
_ALWAYS = re.compile(
    r"passwords?|passwd|passphrase|passcode|secrets?|credentials?|apikeys?|apitoken|(access|auth)token|(access|secret|private)key"
)
_KEY_KINDS = frozenset(["api", "access", "private", "account", "auth", "encryption", "signing"])
# Whose key it is: `openai_key`, `WANDB_KEY`. (`primary_key`, `state_key` and `query_key` are none.)
_PROVIDERS = frozenset(
    [
        "openai", "anthropic", "huggingface", "hf", "wandb", "aws", "azure", "gcp", "google", "github", "gitlab", "slack",
        "stripe", "comet", "neptune", "mlflow", "databricks", "ssh", "tls", "ssl", "license", "service", "client", "user",
    ]
)  # fmt: skip
# Tokens of a vocabulary or of a transformer, not of a login.
_TOKEN_KINDS = frozenset(
    [
        "pad", "padding", "bos", "eos", "sos", "unk", "mask", "cls", "sep", "class", "start", "end", "stop", "begin",
        "special", "dist", "distill", "register", "image", "vision", "audio", "video", "text", "word", "sub", "per",
        "next", "first", "last", "new", "newline", "blank", "oov", "max", "min", "num", "n", "global", "query", "memory",
        "summary", "latent", "prompt", "prefix", "suffix", "additional", "single", "each",
    ]
)  # fmt: skip
_REFERENCE = re.compile(r"\$\{[^{}]+\}")
_PLAIN_WORD = re.compile(r"[a-z][a-z_./ ]*")
_NOT_TEXT = re.compile(r"(?i)true|false|null|none|~|[-+]?[\d.][\d._]*(e[-+]?\d+)?")

# A password may hold anything but white space; `host:8080/a@b` is a port and a path. Bounds keep hostile text cheap.
_URL_LOGIN = re.compile(r"""\b(\w[\w+.-]{0,20}://)[^\s/:@'"]{0,256}:(?!\d{1,5}/)[^\s'"]{0,512}@""")
_URL_TOKEN = re.compile(r"\b(https?://)[\w-]{16,256}@")
_NAME = re.compile(r"""(?<![\w.-])-{0,2}([\w.-]{0,128}\w)(['"]?\s?[=:]\s?)(['"]?)(?![{\[(\s])""")
_VALUE = {
    "=": re.compile(r"""[^&;,}\s'"]+"""),
    ":": re.compile(r"[^,}\n]+"),
    "'": re.compile(r"[^'\n]+"),
    '"': re.compile(r'[^"\n]+'),
}
_KNOWN = re.compile(
    r"\b(?:gh[pousr]_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|hf_[A-Za-z0-9]{30,}|xox[abprs]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{16}|sk-(?:proj-|ant-)?[A-Za-z0-9]{20,}|eyJ[\w-]{10,200}\.[\w-]{10,4000}\.[\w-]*)"
    r"|(?<=\bBearer )[\w.~+/-]{8,}=*"
)


def redact(config: Any, *, secrets: Collection[str] = ()) -> Any:
    """A copy of plain data (dicts, lists, scalars) without its secrets.

    Args:
        secrets: texts known to be secret, such as values that came from the environment; hidden wherever they
            occur.
    """
    return _redact(config, "", False, sorted(filter(None, secrets), key=len, reverse=True))


def redact_overrides(arguments: list[str], *, secrets: Collection[str] = ()) -> list[str]:
    """Hydra overrides, or a whole command line, without the secrets: `+tracking.password=***`, `--token ***`."""
    redacted: list[str] = []
    flag: str | None = None
    for argument in arguments:
        name, sign, value = argument.partition("=")
        if flag is not None and not argument.startswith("-"):
            argument = HIDDEN if _is_secret_text(flag, argument) else argument
        elif sign:
            # `db.credentials.user=…`: a secret section hides what is in it.
            *sections, last = name.lstrip("+~-'\"").split(".")
            telling = [section for section in sections if _strength(section) == 2] + [last]
            hidden = any(_is_secret_text(word, value) for word in telling)
            argument = f"{name}={HIDDEN}" if hidden and value else argument
        flag = argument.lstrip("-") if argument.startswith("--") and not sign else None
        bare = argument.replace("\\", "")  # Hydra escapes what it hands to the jobs of a sweep
        if bare != argument and redact_text(bare, secrets=secrets) != bare:
            argument = bare
        redacted.append(redact_text(argument, secrets=secrets))
    return redacted


def redact_text(text: str, *, secrets: Collection[str] = ()) -> str:
    """Free text (a message, a traceback, a URL) without the secrets that can be recognised in it."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    if "://" in text and "@" in text:
        text = _URL_TOKEN.sub(rf"\1{HIDDEN}@", _URL_LOGIN.sub(rf"\1{HIDDEN}@", text))
    return _redact_pairs(_KNOWN.sub(HIDDEN, text))


def _redact(value: Any, name: str, inside: bool, secrets: list[str]) -> Any:
    inside = inside or _strength(name) == 2
    if isinstance(value, dict):
        return {
            key: _redact(item, str(key).rpartition(".")[2], inside, secrets) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_redact(item, name, inside, secrets) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        hidden = value and (inside or _is_secret_text(name, value))
        return HIDDEN if hidden else redact_text(value, secrets=secrets)
    return HIDDEN if inside else value


def _is_secret_text(name: str, text: str) -> bool:
    if _REFERENCE.fullmatch(text):
        return False  # where the secret is, not what it is
    strength = _strength(name)
    if strength == 1:
        # `token`, `auth` and `key` are also words of machine learning: numbers and switches under them are no
        # secrets, nor is a plain word under a bare `key` (`key: image`).
        bare_key = _words(name) == ["key"]
        return not (_NOT_TEXT.fullmatch(text) or (bare_key and _PLAIN_WORD.fullmatch(text)))
    return strength == 2 and text.lower() not in ("null", "none", "true", "false")


@lru_cache(4096)
def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


@lru_cache(4096)
def _strength(name: str) -> int:
    """2: everything under this name is secret; 1: a text under it is; 0: nothing is."""
    words = _words(name)
    if not words:
        return 0
    if any(map(_ALWAYS.fullmatch, words)):
        return 2
    pairs = list(pairwise(words))
    if any(first in _KEY_KINDS and second in ("key", "keys") for first, second in pairs):
        return 2
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "token":
        return int(before not in _TOKEN_KINDS)
    if last == "tokens":
        return int(before in ("api", "access", "auth", "bearer", "refresh"))
    if last in ("key", "keys") and before in _PROVIDERS:
        return 2
    return int(last in ("auth", "authorization") or words in (["key"], ["pass"], ["pwd"], ["sig"]))


def _redact_pairs(text: str) -> str:
    """`password=…`, `{"hf_token": "…"}`, `?sig=…`. Only what is certain: `token: x` and `key=x` are also prose."""
    if "=" not in text and ":" not in text:
        return text
    pieces: list[str] = []
    end = 0
    for match in _NAME.finditer(text):
        name = match[1].rpartition(".")[2]
        words = _words(name)
        certain = _strength(name) == 2 or (words[-1:] == ["token"] and ("=" in match[2] or len(words) > 1))
        if match.start() < end or not (
            certain or (words == ["sig"] and text[: match.start()].endswith(("?", "&", ";")))
        ):
            continue
        value = _VALUE[match[3] or match[2].strip("'\" ")].match(text, match.end())
        if value and _is_secret_text(name, value[0]):
            pieces += text[end : value.start()], HIDDEN
            end = value.end()
    return "".join(pieces) + text[end:]
