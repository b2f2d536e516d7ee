"""Checks the `_target_`s of a config: each must exist, take the arguments it is given, and get values of the annotated types.

Hydra would say so too, but only when the program comes to that line. A callable that takes `**kwargs` accepts every name. This
module calls no target; to look at one it must import its module.
"""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from daypoint.base.errors import ConfigError


def find(value: Any, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of a plain config that has a `_target_`, with its dotted key, outermost first."""
    if isinstance(value, dict):
        if "_target_" in value:
            yield key, value
        for name, item in value.items():
            yield from find(item, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from find(item, f"{key}.{i}")


def locate(path: str, key: str) -> Callable[..., Any]:
    """The callable of a `_target_`.

    Raises:
        ConfigError: it cannot be imported, or is no callable; says how far the path leads.
    """
    parts = path.split(".") if isinstance(path, str) else []
    if not parts or not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{key}: expected the dotted path of a callable, found {path!r}")
    for n in range(len(parts), 0, -1):
        module = ".".join(parts[:n])
        try:
            found = import_module(module)
            break
        except ModuleNotFoundError as error:
            if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
                raise ConfigError(f"{key}: importing {module} failed: {error}") from error
        except Exception as error:  # a mistake in a module of the user's: whatever it is, it is told
            place = f" ({error.filename}, line {error.lineno})" if isinstance(error, SyntaxError) else ""
            raise ConfigError(
                f"{key}: importing {module} failed: {type(error).__name__}: {error}{place}; HYDRA_FULL_ERROR=1 shows where"
            ) from error
    else:
        raise ConfigError(
            f"{key}: cannot import {path!r}: there is no module {parts[0]!r}; "
            "check the spelling, or install it (`pip install -e .` for your own package)"
        )
    for i in range(n, len(parts)):
        try:
            found = getattr(found, parts[i])
        except AttributeError:
            near = difflib.get_close_matches(parts[i], dir(found), n=1)
            hint = f"; did you mean {'.'.join([*parts[:i], near[0]])}?" if near else ""
            raise ConfigError(
                f"{key}: cannot import {path!r}: {'.'.join(parts[:i])} has no {parts[i]!r}{hint}"
            ) from None
    if not callable(found):
        raise ConfigError(f"{key}: expected a callable, found {path!r}, which is {type(found).__name__}")
    return found


def check_call(key: str, node: Mapping[str, Any]) -> None:
    """Check that a `_target_` exists, takes the arguments it is given, and that plain values have the
    annotated types.

    Arguments that the program adds itself (`params`, `optimizer`, …) may be missing here.

    Raises:
        ConfigError: names the key, what the callable expects and what was found.
    """
    target = locate(node["_target_"], f"{key}._target_" if key else "_target_")
    try:
        signature = inspect.signature(target)
    except (ValueError, TypeError):
        return  # a builtin that does not tell
    parameters = signature.parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    try:
        hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except Exception:  # annotations are anybody's code; without them there is nothing to check
        hints = {}
    for name, value in node.items():
        if name.startswith("_") and name.endswith("_"):
            continue  # Hydra's own: _target_, _partial_, …
        where = f"{key}.{name}" if key else name
        if name not in names:
            if takes_any:
                continue
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(names)}"
            raise ConfigError(
                f"{where}: {node['_target_']} takes no argument {name!r}; {hint}, or leave it out with ~{where}"
            )
        if name in hints and not _fits(value, hints[name]):
            raise ConfigError(
                f"{where}: expected {_type_name(hints[name])} (from {node['_target_']}), "
                f"found {value!r} ({type(value).__name__})"
            )


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value can be what an annotation asks for; True where that cannot be told.

    null fits everything: it stands for what the program finds out later.
    """
    if value is None:
        return True
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if isinstance(value, dict):
        return True  # may be a nested _target_
    if hint in (type(None), bool, int, float, str):
        kinds = (int, float) if hint is float else hint
        return isinstance(value, kinds) and (hint is bool or not isinstance(value, bool))
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            return False
        arguments = [a for a in typing.get_args(hint) if a is not Ellipsis]
        if origin is tuple and Ellipsis not in typing.get_args(hint) and arguments:
            return len(value) == len(arguments) and all(map(_fits, value, arguments))
        return not arguments or all(_fits(item, arguments[0]) for item in value)
    if inspect.isclass(hint) and type(value) in (str, bool, int, float, list):
        # A plain value for a parameter that wants some class (a Tensor, a Path): only the sure mismatch is refused.
        return not hint.__module__.startswith("torch")
    return True


def _type_name(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_name(option) for option in typing.get_args(hint))
    if hint is type(None):
        return "null"
    return hint.__name__ if inspect.isclass(hint) and origin is None else str(hint).removeprefix("typing.")
