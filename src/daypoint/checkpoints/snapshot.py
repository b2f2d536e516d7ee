"""Copy the state of a training (weights, optimizer, random numbers) out of live objects, and put it back bit for bit.

Names in a snapshot are those of the bare model. Where `torch.compile`, DistributedDataParallel or DataParallel
wrap it, or a part of it, their `_orig_mod.` and `module.` are left out. A wrapper is recognised by its type and never
by the text, so a model with a child of its own called `module` keeps that name. Everything is checked before anything
live is changed. This module knows no file and no run.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import torch

from daypoint.base.errors import CheckpointError
from daypoint.checkpoints.packing import Spare, host, pack, unpack
from daypoint.checkpoints.tensorfile import NATIVE

_PACKED = "daypoint.packed"
_LISTED = 10


@dataclass(frozen=True)
class Snapshot:
    """A training at one step, on the CPU, nothing shared with the live one (if copied).

    Attributes:
        weights: the model's state by name.
        metadata: what of the model's state is no ordinary tensor, packed; for the header of the weights file.
        tensors: the tensors of the rest.
        document: the rest, as strict JSON.
        device: where the model is.
    """

    weights: dict[str, torch.Tensor]
    metadata: dict[str, str]
    tensors: dict[str, torch.Tensor]
    document: Any
    device: str | None = None

    def spare(self) -> Spare:
        """Its memory, for the next one, when this copy is needed no more."""
        return Spare([*self.weights.values(), *self.tensors.values()])


def take(
    model: torch.nn.Module,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    extra: Mapping[str, Any] | None = None,
    *,
    gradients: bool = False,
    copy: bool = True,
    spare: Spare | None = None,
) -> Snapshot:
    """Take a snapshot. It consumes no random numbers.

    Args:
        optimizer, scheduler, scaler: whatever has a `state_dict` of plain data.
        extra: more plain data, such as the position in the data.
        gradients: keep the gradients too, for a step in the middle of an accumulation.
        copy: False when it is written before training goes on.
        spare: memory for the copies, as far as it fits.

    Raises:
        CheckpointError: something cannot be stored; names it.
    """
    names = clean_names(model)
    spare = spare or Spare()
    weights: dict[str, torch.Tensor] = {}
    odd: dict[str, Any] = {}
    for key, value in model.state_dict().items():
        if isinstance(value, torch.Tensor) and value.dtype in NATIVE:
            weights[names[key]] = host(value, f"model.{names[key]}", copy=copy, spare=spare)
        else:
            odd[names[key]] = value
    metadata = {"format": "pt"}
    if odd:
        tensors, document = pack(odd, "model", copy=copy, spare=spare)
        weights |= {f"{_PACKED}.{name}": tensor for name, tensor in tensors.items()}
        metadata[_PACKED] = orjson.dumps(document).decode()

    parameters = _parameters(model)
    state: dict[str, Any] = {"rng": _rng_state()}
    if optimizer is not None:
        state["optimizer"] = {
            "kind": _kind(optimizer),
            "parameters": _parameter_names(optimizer, parameters),
            "state": _optimizer_state(optimizer),
        }
    if scheduler is not None:
        state["scheduler"] = {"kind": _kind(scheduler), "state": dict(scheduler.state_dict())}
    if scaler is not None:
        state["scaler"] = {"kind": _kind(scaler), "state": dict(scaler.state_dict())}
    if gradients:
        state["gradients"] = {
            name: parameter.grad for name, parameter in parameters if parameter.grad is not None
        }
    state["extra"] = None if extra is None else dict(extra)
    tensors, document = pack(state, copy=copy, spare=spare)
    device = next((str(parameter.device) for _, parameter in parameters), "cpu")
    return Snapshot(weights, metadata, tensors, document, device)


def put_weights(
    model: torch.nn.Module, weights: dict[str, torch.Tensor], metadata: Mapping[str, str], where: str
) -> None:
    """Load weights into a model, wrapped or not. The model is unchanged if they do not fit.

    Raises:
        CheckpointError: names, shapes or dtypes differ; lists them.
    """
    saved: dict[str, Any] = {name: t for name, t in weights.items() if not name.startswith(f"{_PACKED}.")}
    if _PACKED in metadata:
        packed = {name.removeprefix(f"{_PACKED}."): tensor for name, tensor in weights.items()}
        saved |= unpack(packed, orjson.loads(metadata[_PACKED]), where)
    current = model.state_dict()
    names = clean_names(model)
    problems = _misfits(saved, {names[key]: value for key, value in current.items()})
    if problems:
        raise CheckpointError(
            f"{where}: the weights do not fit the model: {'; '.join(problems)}; "
            "build the model from the config in the checkpoint's card"
        )
    state = OrderedDict((key, saved[names[key]]) for key in current)
    # Modules read the version of their own state from here; without it some take new state for old.
    state._metadata = getattr(current, "_metadata", {})  # type: ignore[attr-defined]
    model.load_state_dict(state, strict=True)


@dataclass(frozen=True)
class Restored:
    """What came with a snapshot, besides what was put back.

    Attributes:
        extra: as it was given to `take`.
        overridden: settings of the optimizer that were one thing when it was built and are another now,
            because the checkpoint said so: name -> (built with, restored).
        notes: sentences about what could not be restored.
    """

    extra: dict[str, Any] | None
    overridden: dict[str, tuple[Any, Any]]
    notes: list[str]


def put_back(
    saved: Snapshot,
    where: str,
    *,
    model: torch.nn.Module,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
) -> Restored:
    """Put a snapshot back into newly built objects.

    Raises:
        CheckpointError: the weights do not fit, an object is of another kind than the one that was saved, its
            parameters differ, or the snapshot has no such object.
    """
    state = unpack(saved.tensors, saved.document, where)
    parameters = _parameters(model)
    targets = {"scheduler": scheduler, "optimizer": optimizer, "scaler": scaler}
    for role, target in targets.items():
        if target is not None:
            _check(role, target, state.get(role), parameters, where)
    put_weights(model, saved.weights, saved.metadata, where)
    overridden: dict[str, tuple[Any, Any]] = {}
    # The scheduler before the optimizer, as torch documents it: the optimizer's learning rate has the last word.
    for role, target in targets.items():
        if target is None:
            continue
        content = state[role]["state"]
        if role == "optimizer":
            overridden = _overridden(optimizer, content)
        try:
            target.load_state_dict(content)
        except (KeyError, ValueError, RuntimeError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{where}: the {role} does not take its saved state: {error}") from error
        if role == "optimizer":
            _undo_casts(optimizer, content)
    gradients = state.get("gradients", {})
    for name, parameter in parameters:
        if name in gradients:
            parameter.grad = gradients[name].to(parameter.device)
    # Last: building and loading may have drawn random numbers.
    notes = _set_rng_state(state["rng"])
    return Restored(state["extra"], overridden, notes)


# ---------------------------------------------------------------- names


def clean_names(model: torch.nn.Module) -> dict[str, str]:
    """For each key of the model's state_dict, its name in the bare model."""
    wrappers = _wrappers(model)
    return {key: _clean(key, wrappers) for key in model.state_dict()}


def _parameters(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    wrappers = _wrappers(model)
    return [(_clean(name, wrappers), parameter) for name, parameter in model.named_parameters()]


def _wrappers(model: torch.nn.Module) -> list[tuple[str, str]]:
    """Prefixes that a wrapper has added to, and what they were, the innermost first."""
    found = []
    for path, module in model.named_modules(remove_duplicate=False):
        inner = _inner_name(module)
        if inner is not None:
            prefix = f"{path}." if path else ""
            found.append((f"{prefix}{inner}.", prefix))
    return sorted(found, key=lambda pair: len(pair[0]), reverse=True)


def _inner_name(module: torch.nn.Module) -> str | None:
    if isinstance(module, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel):
        return "module"
    # Importing it costs a second; where it is not imported, nothing is compiled.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None and isinstance(module, dynamo.OptimizedModule):
        return "_orig_mod"
    return None


def _clean(key: str, wrappers: list[tuple[str, str]]) -> str:
    for added, original in wrappers:
        if key.startswith(added):
            key = original + key[len(added) :]
    return key


def _kind(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _misfits(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    problems = []
    for word, names in (
        ("missing", current.keys() - saved.keys()),
        ("unexpected", saved.keys() - current.keys()),
    ):
        if names:
            problems.append(f"{word} in the file: {_list(sorted(names))}")
    differing = []
    for name in sorted(current.keys() & saved.keys()):
        ours, theirs = current[name], saved[name]
        if not isinstance(ours, torch.Tensor) or torch.nn.parameter.is_lazy(ours):
            continue
        if ours.is_meta:
            differing.append(f"{name} (the model is on the meta device: call to_empty() first)")
        elif not isinstance(theirs, torch.Tensor):
            differing.append(f"{name} (file: {type(theirs).__name__}, model: tensor)")
        elif ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            differing.append(
                f"{name} (file: {tuple(theirs.shape)} {theirs.dtype}, model: {tuple(ours.shape)} {ours.dtype})"
            )
    if differing:
        problems.append(f"different: {_list(differing)}")
    return problems


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"


# ---------------------------------------------------------------- the optimizer


def _optimizer_state(optimizer: Any) -> dict[str, Any]:
    state = dict(optimizer.state_dict())
    if "param_groups" in state:
        # torch keeps names for people to read, with the prefixes of wrappers; "parameters" has the clean ones.
        state["param_groups"] = [
            {k: v for k, v in g.items() if k != "param_names"} for g in state["param_groups"]
        ]
    return state


def _parameter_names(
    optimizer: Any, parameters: list[tuple[str, torch.nn.Parameter]]
) -> list[list[str | None]] | None:
    """The names of the optimizer's parameters by group; None for one that is not the model's."""
    names = {id(parameter): name for name, parameter in parameters}
    groups = getattr(optimizer, "param_groups", None)
    return None if groups is None else [[names.get(id(p)) for p in group["params"]] for group in groups]


def _check(
    role: str, target: Any, saved: Any, parameters: list[tuple[str, torch.nn.Parameter]], where: str
) -> None:
    if saved is None:
        raise CheckpointError(f"{where}: it holds no {role}; save with {role}=..., or restore without it")
    # The class may have moved to another module since; its name has to be the same.
    expected, found = saved["kind"].rpartition(".")[2], type(target).__qualname__.rpartition(".")[2]
    if expected != found:
        raise CheckpointError(
            f"{where}: {role}: the checkpoint holds {expected}, found {found}; resume with the same"
        )
    if role == "optimizer":
        names = _parameter_names(target, parameters)
        if names != saved["parameters"]:
            raise CheckpointError(
                f"{where}: optimizer: its parameters or their order differ from those of the checkpoint; "
                "build it from the model in the same way"
            )


def _overridden(optimizer: Any, saved: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    changed: dict[str, tuple[Any, Any]] = {}
    for built, restored in zip(optimizer.param_groups, saved["param_groups"], strict=False):
        for name in built.keys() & restored.keys() - {"params", "param_names"}:
            if name == "lr" and "initial_lr" in built and "initial_lr" in restored:
                continue  # a scheduler moves it; what it started from is compared
            if name in ("momentum", "betas") and "max_momentum" in restored:
                continue  # moved by OneCycleLR or CyclicLR
            old, new = built[name], restored[name]
            if isinstance(old, torch.Tensor) or isinstance(new, torch.Tensor):
                old, new = float(old), float(new)
            if old != new and not (old is None or new is None):
                changed.setdefault("lr" if name == "initial_lr" else name, (old, new))
    return changed


def _undo_casts(optimizer: Any, saved: Mapping[str, Any]) -> None:
    """torch casts loaded state to the dtype of its parameter; state that was wider must come back as it was."""
    flat = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entries in saved.get("state", {}).items():
        if not isinstance(index, int) or not isinstance(entries, dict) or index >= len(flat):
            continue
        live = optimizer.state[flat[index]]
        for name, value in entries.items():
            loaded = live.get(name)
            if (
                isinstance(value, torch.Tensor)
                and isinstance(loaded, torch.Tensor)
                and value.dtype != loaded.dtype
            ):
                live[name] = value.to(loaded.device)


# ---------------------------------------------------------------- random numbers


def _rng_state() -> dict[str, Any]:
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def _set_rng_state(state: Mapping[str, Any]) -> list[str]:
    notes = []
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    cuda = state.get("cuda", [])
    present = torch.cuda.device_count() if cuda else 0
    for index, device_state in enumerate(cuda[:present]):
        torch.cuda.set_rng_state(device_state, index)
    if present < len(cuda):
        notes.append(f"random numbers: saved for {len(cuda)} CUDA devices, this machine has {present}")
    if "mps" in state:
        if torch.backends.mps.is_available():
            torch.mps.set_rng_state(state["mps"])
        else:
            notes.append("random numbers: saved for MPS, which this machine does not have")
    return notes
