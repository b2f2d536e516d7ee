"""Print the table of `python train.py debug=shapes`: what goes into and comes out of every module, for one batch.

It runs the model once, as it is (same mode, same device), and leaves it as it was: buffers, random state,
hooks and gradients. A module that is called twice has two rows, and its parameters count once. When the forward pass fails,
the table ends at the module that failed. It does not know what a shape should be.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

MOST_ITEMS = 8
"""How many items of a long tuple, list or dict are shown."""


@dataclass
class Call:
    """One call of one module, or a module that was never called (`inputs` is None)."""

    name: str
    module: nn.Module
    inputs: str | None = None
    output: str | None = None
    """None: it failed. A call that failed and was caught inside the model has a text here that says so."""
    parameters: int = 0
    """Those of the module itself, without its submodules and without those that an earlier row has counted."""
    shared: int = 0
    """Those that an earlier row has counted."""

    @property
    def kind(self) -> str:
        return type(self.module).__name__


@dataclass
class Shapes:
    """What one forward pass showed. `error` is None, or names the module that failed and why."""

    calls: list[Call] = field(default_factory=list)
    uncalled: list[Call] = field(default_factory=list)
    error: str | None = None
    trainable: int = 0
    """How many of all parameters need a gradient."""

    @property
    def total(self) -> int:
        """All parameters, each once."""
        return sum(call.parameters for call in [*self.calls, *self.uncalled])


def trace_shapes(model: nn.Module, x: Any) -> Shapes:
    """Call `model(x)` once, as a training step does, and write down the shapes.

    Args:
        x: one batch, on the model's device: whatever the model's forward takes as its first argument.
    """
    model = getattr(model, "_orig_mod", model)
    if any(is_lazy(tensor) for tensor in [*model.parameters(), *model.buffers()]):
        model = _copy_of_lazy(model)  # the first call gives lazy modules their size
    shapes = Shapes()
    running: list[tuple[Call, BaseException | None]] = []
    failed: list[tuple[BaseException | None, Call]] = []
    done: list[str] = []
    names = {module: name for name, module in model.named_modules()}

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [*map(_shape, args), *(f"{key}={_shape(value)}" for key, value in kwargs.items())]
        call = Call(names[module], module, inputs=", ".join(given))
        shapes.calls.append(call)
        running.append((call, sys.exception()))

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not running or running[-1][0].module is not module:
            return  # a hook of the user's own failed before it began
        call, handled = running.pop()
        error = sys.exception()
        if error is handled:  # this may all be in an `except` of the model
            call.output = _shape(output)
            done.append(call.name)
        else:
            failed.append((error, call))

    hooks = []
    ended_by: Exception | None = None
    try:
        with _left_as_it_was(model, x), _uncompiled():
            for module in model.modules():
                if not isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
                    hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
                    hooks.append(module.register_forward_hook(after, always_call=True))
            model(x)
    except Exception as error:  # any error of the user's model is what this table is there to show
        ended_by = error
    finally:
        for hook in hooks:
            hook.remove()
    for raised, call in failed:
        if raised is not ended_by:
            call.output = "failed, and was caught"
    if ended_by is not None:
        shapes.error = _explain(ended_by, [call for raised, call in failed if raised is ended_by], done)
    _count(model, shapes)
    return shapes


def print_shapes(model: nn.Module, x: Any, console: Console | None = None) -> str | None:
    """Run `model(x)` once and print a table of every module's input and output shape and parameters.

    Returns None, or what went wrong in the forward pass, which is printed too.
    """
    shapes = trace_shapes(model, x)
    (console or Console()).print(_render(shapes))
    return shapes.error


# ---------------------------------------------------------------- leaving no trace


@contextmanager
def _left_as_it_was(model: nn.Module, x: Any) -> Iterator[None]:
    """Afterwards the buffers (batch norm's means) and the random state are what they were."""
    buffers = [
        (module, name, buffer, None if buffer is None or is_lazy(buffer) else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers(), *_tensors(x)]}
    cuda = [device.index or 0 for device in devices if device.type == "cuda"]
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        with torch.no_grad():
            for module, name, buffer, kept in buffers:
                if kept is not None:
                    buffer.copy_(kept)
                if buffer is None or kept is not None:
                    module._buffers[name] = buffer  # forward may have put another one there


def _uncompiled() -> AbstractContextManager[None]:
    """Run compiled parts of the model eagerly: inside compiled code no hook is called."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _copy_of_lazy(model: nn.Module) -> nn.Module:
    """A copy, whose lazy modules get their size in the first call."""
    lazy = [buffer for buffer in model.buffers() if isinstance(buffer, UninitializedBuffer)]
    # deepcopy cannot copy these.
    copies = {id(of): UninitializedBuffer(of.requires_grad, of.device, of.dtype) for of in lazy}
    return copy.deepcopy(model, copies)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in _tensors(item)]


def _count(model: nn.Module, shapes: Shapes) -> None:
    """Give each parameter to the first row that has it; list the modules that were never called."""
    called = {call.module for call in shapes.calls}
    containers = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
    for name, module in model.named_modules():
        is_empty = isinstance(module, containers) and not any(True for _ in module.parameters(recurse=False))
        if module not in called and not is_empty:
            unseen = "TorchScript, not seen into" if isinstance(module, torch.jit.ScriptModule) else None
            shapes.uncalled.append(Call(name, module, inputs=unseen))
    counted: set[nn.Parameter] = set()
    for call in [*shapes.calls, *shapes.uncalled]:
        for parameter in call.module.parameters(recurse=False):
            if is_lazy(parameter):  # the forward pass did not come so far
                continue
            if parameter in counted:
                call.shared += parameter.numel()
            else:
                counted.add(parameter)
                call.parameters += parameter.numel()
    shapes.trainable = sum(parameter.numel() for parameter in counted if parameter.requires_grad)


def _explain(error: Exception, failed: list[Call], done: list[str]) -> str:
    """Args: failed: the calls that this error ended, the innermost first."""
    reason = str(error).strip() or type(error).__name__
    if not failed:
        return f"the model failed: {reason}"
    call = failed[0]
    where = f"{call.name} ({call.kind})" if call.name else f"the model itself ({call.kind})"
    after = f", after {done[-1]} returned" if done else ""
    return f"{where}: failed on input {call.inputs}{after}: {reason}"


# ---------------------------------------------------------------- showing


def _shape(value: Any) -> str:
    """[64, 1, 8, 8] for a float32 tensor, others with their dtype; also inside tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        if value.is_nested and value.layout is torch.strided:  # has no shape
            return "nested (" + _some([_shape(item) for item in value.unbind()]) + ")"
        dtype = "" if value.dtype is torch.float32 else f" {str(value.dtype).removeprefix('torch.')}"
        return f"{list(value.shape)}{dtype}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return "{" + _some([f"{key}: {_shape(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "(" + _some([_shape(item) for item in value]) + ")"
    return str(value) if value is None or isinstance(value, bool | int | float) else type(value).__name__


def _some(items: list[str]) -> str:
    left = len(items) - MOST_ITEMS
    return ", ".join(items if left <= 0 else [*items[:MOST_ITEMS], f"{left} more"])


def _render(shapes: Shapes) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold", caption_justify="left")
    for heading in ("module", "class", "input", "output"):
        table.add_column(heading, overflow="fold")
    table.add_column("parameters", justify="right", overflow="fold")
    failed = next((call for call in reversed(shapes.calls) if call.output is None), None)
    for call in [*shapes.calls, *shapes.uncalled]:
        depth = call.name.count(".") + 1 if call.name else 0
        output = call.output or ("failed" if call is failed else "")
        own = f"{call.parameters:,}" if call.parameters else ""
        table.add_row(
            # Text, not markup: [64] would be taken for a style.
            Text("  " * depth + (call.name or "(model)")),
            Text(call.kind),
            Text("never called" if call.inputs is None else call.inputs),
            Text(output, style="bold red" if output == "failed" else ""),
            Text(own + (f" ({call.shared:,} shared)" if call.shared else "")),
        )
    total = Text(f"{shapes.total:,} parameters, {shapes.trainable:,} of them trainable")
    error = [Text(f"error: {shapes.error}", style="red")] if shapes.error else []
    return Group(table, Text(), total, *error)
