"""The table behind `python train.py debug=shapes`: what goes into and comes out of every module, for a batch.

It runs the model once, as it is (same mode, same device), and leaves it as it was: buffers, random state,
hooks and gradients. It refuses to know what a shape should be. When the forward pass fails, the table ends at
the module that failed. One number: one row a call, so a module that is called twice has two rows, and its
parameters count once.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_ITEMS = 8
"""Of a long tuple, list or dict so many are shown."""


@dataclass
class Call:
    """One call of one module, or a module that was never called (`inputs` is None)."""

    name: str
    kind: str
    inputs: str | None = None
    output: str | None = None
    """None: it failed. What failed and was caught inside the model has a text here that says so."""
    parameters: int = 0
    """Those of the module itself, not of the modules in it, and none that an earlier row has counted."""
    shared: int = 0
    """Those that an earlier row has counted."""


@dataclass
class Shapes:
    """What one forward pass showed. `error` is None, or names the module that failed and why."""

    calls: list[Call] = field(default_factory=list)
    uncalled: list[Call] = field(default_factory=list)
    error: str | None = None
    trainable: int = 0
    """How many of all parameters ask for a gradient."""

    @property
    def total(self) -> int:
        """All parameters, each once."""
        return sum(call.parameters for call in [*self.calls, *self.uncalled])


def trace_shapes(model: nn.Module, x: Any) -> Shapes:
    """Call `model(x)` once, as a training step does, and write down the shapes.

    Args:
        x: one batch, on the model's device: whatever the model's forward takes as its first argument.
    """
    import torch

    model = getattr(model, "_orig_mod", model)
    if any(_is_lazy(tensor) for tensor in [*model.parameters(), *model.buffers()]):
        model = _copy_of_lazy(model)  # the first call gives lazy modules their size
    shapes = Shapes()
    running: list[tuple[nn.Module, Call, BaseException | None]] = []
    failed: list[tuple[BaseException | None, Call]] = []
    done: list[str] = []
    calls_of: dict[nn.Module, list[Call]] = {module: [] for module in model.modules()}
    names = {module: name for name, module in model.named_modules()}

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [*map(_shape, args), *(f"{key}={_shape(value)}" for key, value in kwargs.items())]
        call = Call(names[module], type(module).__name__, inputs=", ".join(given))
        shapes.calls.append(call)
        calls_of[module].append(call)
        running.append((module, call, sys.exception()))

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not running or running[-1][0] is not module:
            return  # a hook of the user's own failed before it began
        _, call, handled = running.pop()
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
    _count(model, shapes, calls_of, names)
    return shapes


def shape_table(model: nn.Module, x: Any) -> RenderableType:
    """What `trace_shapes` found, for a rich console."""
    return _render(trace_shapes(model, x))


def print_shapes(model: nn.Module, x: Any, console: Console | None = None) -> str | None:
    """Print the table. Returns None, or what went wrong in the forward pass (printed too)."""
    shapes = trace_shapes(model, x)
    (console or Console()).print(_render(shapes))
    return shapes.error


# ---------------------------------------------------------------- leaving no trace


@contextmanager
def _left_as_it_was(model: nn.Module, x: Any) -> Iterator[None]:
    """Afterwards the buffers (batch norm's means) and the random state are what they were."""
    import torch

    buffers = [
        (module, name, buffer, None if buffer is None or _is_lazy(buffer) else buffer.detach().clone())
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
    """Parts of the model that are compiled run as they were written; a hook is not heard inside of them."""
    import torch

    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _is_lazy(tensor: Tensor) -> bool:
    from torch.nn.parameter import is_lazy

    return is_lazy(tensor)


def _copy_of_lazy(model: nn.Module) -> nn.Module:
    """A copy, whose lazy modules get their size in the first call."""
    from torch.nn.parameter import UninitializedBuffer

    lazy = [buffer for buffer in model.buffers() if isinstance(buffer, UninitializedBuffer)]
    # deepcopy cannot copy these.
    copies = {id(of): UninitializedBuffer(of.requires_grad, of.device, of.dtype) for of in lazy}
    return copy.deepcopy(model, copies)


def _tensors(value: Any) -> list[Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in _tensors(item)]


def _count(
    model: nn.Module, shapes: Shapes, calls_of: dict[nn.Module, list[Call]], names: dict[nn.Module, str]
) -> None:
    """Give each parameter to the first row that has it; list the modules that were never called."""
    import torch
    from torch import nn

    for module, calls in calls_of.items():
        own = list(module.parameters(recurse=False))
        is_container = isinstance(module, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict)
        if not calls and not (is_container and not own):
            unseen = "TorchScript, not seen into" if isinstance(module, torch.jit.ScriptModule) else None
            calls.append(Call(names[module], type(module).__name__, inputs=unseen))
            shapes.uncalled.append(calls[0])
    counted: set[int] = set()
    owner = {id(call): module for module, calls in calls_of.items() for call in calls}
    for call in [*shapes.calls, *shapes.uncalled]:
        for parameter in owner[id(call)].parameters(recurse=False):
            if _is_lazy(parameter):  # the forward pass did not come so far
                continue
            if id(parameter) in counted:
                call.shared += parameter.numel()
            else:
                counted.add(id(parameter))
                call.parameters += parameter.numel()
    shapes.trainable = sum(
        parameter.numel()
        for parameter in model.parameters()
        if parameter.requires_grad and not _is_lazy(parameter)
    )


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
    import torch

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
