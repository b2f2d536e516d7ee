"""The shape table: one row a call, the failing module named, nothing of the model changed."""

import io
from dataclasses import dataclass

import pytest
import torch
from rich.console import Console
from torch import nn

from daypoint.run.shapes import print_shapes, trace_shapes


def rows(shapes):
    return [(call.name, call.kind, call.inputs, call.output, call.parameters) for call in shapes.calls]


def shown(model, x, width=100):
    console = Console(file=io.StringIO(), width=width)
    error = print_shapes(model, x, console)
    return console.file.getvalue(), error


class Custom(nn.Module):
    """A model whose forward is given."""

    def __init__(self, forward, **modules):
        super().__init__()
        self.f = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x):
        return self.f(self, x)


def test_each_module_has_its_shapes_and_own_parameters_in_the_order_of_calls():
    model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 5), nn.ReLU()), nn.Linear(5, 2))
    shapes = trace_shapes(model, torch.randn(3, 1, 8, 8))
    assert rows(shapes) == [
        ("", "Sequential", "[3, 1, 8, 8]", "[3, 2]", 0),
        ("0", "Flatten", "[3, 1, 8, 8]", "[3, 64]", 0),
        ("1", "Sequential", "[3, 64]", "[3, 5]", 0),
        ("1.0", "Linear", "[3, 64]", "[3, 5]", 325),
        ("1.1", "ReLU", "[3, 5]", "[3, 5]", 0),
        ("2", "Linear", "[3, 5]", "[3, 2]", 12),
    ]
    assert (shapes.total, shapes.error) == (337, None)


def test_a_module_called_twice_has_two_rows_and_counts_once():
    model = Custom(lambda self, x: self.layer(self.layer(x)), layer=nn.Linear(4, 4))
    shapes = trace_shapes(model, torch.randn(2, 4))
    assert [(call.name, call.parameters, call.shared) for call in shapes.calls[1:]] == [
        ("layer", 20, 0),
        ("layer", 0, 20),
    ]
    assert shapes.total == 20


def test_tied_weights_count_once():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    shapes = trace_shapes(model, torch.tensor([1, 2]))
    assert (shapes.total, shapes.calls[2].shared) == (20, 20)
    assert shapes.calls[1].inputs == "[2] int64"


def test_a_module_never_called_is_listed():
    model = Custom(lambda self, x: self.used(x), used=nn.Linear(2, 2), unused=nn.Linear(3, 3))
    shapes = trace_shapes(model, torch.randn(1, 2))
    assert [(call.name, call.parameters) for call in shapes.uncalled] == [("unused", 12)]
    assert shapes.total == 18
    assert "never called" in shown(model, torch.randn(1, 2))[0]


def test_a_module_list_is_not_said_to_be_never_called():
    model = Custom(lambda self, x: self.layers[0](x), layers=nn.ModuleList([nn.ReLU()]))
    assert trace_shapes(model, torch.randn(1, 2)).uncalled == []


@dataclass
class Output:
    logits: torch.Tensor
    loss: float | None = None


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (lambda x: (x, [x, None]), "([1, 2], ([1, 2], None))"),
        (lambda x: {"a": x.half(), "n": 3}, "{a: [1, 2] float16, n: 3}"),
        (lambda x: Output(x), "{logits: [1, 2], loss: None}"),
        (lambda x: x.sum(), "[]"),
        (lambda x: [x] * 10, "(" + "[1, 2], " * 8 + "2 more)"),
        (lambda x: object(), "object"),
    ],
)
def test_an_output_of_any_structure_is_shown(output, text):
    assert trace_shapes(Custom(lambda self, x: output(x)), torch.randn(1, 2)).calls[0].output == text


def test_keyword_arguments_are_shown():
    inner = Custom(None)
    inner.forward = lambda x, scale: x * scale
    model = Custom(lambda self, x: self.inner(x, scale=2), inner=inner)
    assert trace_shapes(model, torch.randn(3)).calls[1].inputs == "[3], scale=2"


def test_a_dict_as_a_batch_is_given_as_it_is():
    model = Custom(lambda self, batch: batch["x"])
    assert trace_shapes(model, {"x": torch.randn(3)}).calls[0].inputs == "{x: [3]}"


# ---------------------------------------------------------------- failures


def broken():
    return nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.ReLU(), nn.Linear(5, 2)), nn.ReLU())


def test_a_failing_module_is_named_with_its_input_and_the_reason():
    error = trace_shapes(broken(), torch.randn(2, 4)).error
    assert error.startswith("1.1 (Linear): failed on input [2, 3], after 1.0 returned: ")
    assert "mat1 and mat2 shapes cannot be multiplied (2x3 and 5x2)" in error


def test_the_table_ends_at_the_failing_module():
    text, error = shown(broken(), torch.randn(2, 4))
    lines = text.splitlines()
    assert "failed" in next(line for line in lines if "1.1" in line)
    assert f"error: {error}" in " ".join(line.strip() for line in lines)
    assert [call.output for call in trace_shapes(broken(), torch.randn(2, 4)).calls] == [
        None,
        "[2, 3]",
        None,
        "[2, 3]",
        None,
    ]


def test_a_failure_in_the_models_own_forward_is_the_models():
    model = Custom(lambda self, x: self.layer(x) @ x, layer=nn.Linear(4, 3))
    assert trace_shapes(model, torch.randn(2, 4)).error.startswith(
        "the model itself (Custom): failed on input [2, 4], after layer returned: "
    )


def test_an_error_without_a_text_is_named_by_its_type():
    def fail(self, x):
        raise AssertionError

    assert trace_shapes(Custom(fail), torch.randn(1)).error.endswith(": AssertionError")


def test_an_interrupt_is_not_taken_for_a_failure():
    def stop(self, x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trace_shapes(Custom(stop), torch.randn(1))


def or_else(self, x):
    try:
        y = self.first(x)
    except RuntimeError:
        return self.second(x)
    return self.second(y)


def test_a_failure_that_the_model_catches_is_said_and_is_no_failure_of_the_model():
    first = nn.Sequential(nn.ReLU(), nn.Linear(5, 2))
    shapes = trace_shapes(Custom(or_else, first=first, second=nn.Linear(4, 3)), torch.randn(2, 4))
    assert shapes.error is None
    assert [(call.name, call.output) for call in shapes.calls] == [
        ("", "[2, 3]"),
        ("first", "failed, and was caught"),
        ("first.0", "[2, 4]"),
        ("first.1", "failed, and was caught"),
        ("second", "[2, 3]"),
    ]


def test_after_a_failure_that_was_caught_the_one_that_was_not_is_named():
    model = Custom(or_else, first=nn.Linear(5, 2), second=nn.Linear(9, 3))
    shapes = trace_shapes(model, torch.randn(2, 4))
    assert shapes.error.startswith("second (Linear): failed on input [2, 4]: ")
    assert [call.output for call in shapes.calls] == [None, "failed, and was caught", None]


def test_a_hook_of_the_users_own_that_fails_is_the_failure_of_the_module_around_it():
    model = nn.Sequential(nn.ReLU(), nn.ReLU())

    def refuse(module, args):
        raise ValueError("not today")

    model[1].register_forward_pre_hook(refuse)
    error = trace_shapes(model, torch.randn(2)).error
    assert error == "the model itself (Sequential): failed on input [2], after 0 returned: not today"


@pytest.mark.parametrize("rest", [nn.LazyLinear(2), nn.LazyBatchNorm1d()])
def test_a_failure_before_a_lazy_module_has_its_size_still_gives_the_table(rest):
    text, error = shown(nn.Sequential(nn.Linear(4, 3), nn.Linear(5, 2), rest), torch.randn(2, 4))
    assert error.startswith("1 (Linear): failed on input [2, 3], after 0 returned: ")
    assert "27 parameters, 27 of them trainable" in text


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_between_modules_is_shown_and_no_failure():
    def pad(self, x):
        return self.inner(torch.nested.nested_tensor([x, x[:1]])).to_padded_tensor(0.0)

    shapes = trace_shapes(Custom(pad, inner=nn.ReLU()), torch.randn(2, 4))
    assert (shapes.error, shapes.calls[1].inputs) == (None, "nested ([2, 4], [1, 4])")


def test_a_model_that_differentiates_in_its_forward_pass_is_shown():
    def slope(self, x):
        return torch.autograd.grad(self.layer(x.requires_grad_()).sum(), x)[0]

    model = Custom(slope, layer=nn.Linear(4, 1))
    shapes = trace_shapes(model, torch.randn(2, 4))
    assert (shapes.error, shapes.calls[0].output) == (None, "[2, 4]")
    assert model.layer.weight.grad is None


def test_a_part_that_is_compiled_is_seen_into():
    inner = torch.compile(nn.Sequential(nn.Linear(4, 3)), backend="eager")
    shapes = trace_shapes(nn.Sequential(inner, nn.ReLU()), torch.randn(2, 4))
    assert shapes.error is None
    assert [call.name for call in shapes.calls] == ["", "0", "0._orig_mod", "0._orig_mod.0", "1"]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is")
def test_what_torchscript_hides_is_said_and_the_rest_is_shown():
    model = nn.Sequential(torch.jit.script(nn.Linear(4, 3)), nn.ReLU())
    shapes = trace_shapes(model, torch.randn(2, 4))
    assert shapes.error is None
    assert rows(shapes) == [
        ("", "Sequential", "[2, 4]", "[2, 3]", 0),
        ("1", "ReLU", "[2, 3]", "[2, 3]", 0),
    ]
    assert [(call.name, call.inputs, call.parameters) for call in shapes.uncalled] == [
        ("0", "TorchScript, not seen into", 15)
    ]


# ---------------------------------------------------------------- leaving no trace


@pytest.mark.parametrize("mode", [True, False])
def test_the_model_is_left_as_it_was(mode):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).train(mode)
    model[2].eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    trace_shapes(model, torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model] == [mode, mode, False]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_failure_leaves_it_as_it_was_too():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(5, 2))
    state = torch.get_rng_state()
    assert trace_shapes(model, torch.ones(2, 4)).error
    assert torch.equal(torch.get_rng_state(), state)
    assert model[0].num_batches_tracked == 0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_buffer_that_forward_replaces_is_put_back():
    class Ema(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))
            self.register_buffer("last", None)

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean()
            self.last = x.mean()
            return x

    model = Ema()
    mean = model.mean
    trace_shapes(model, torch.ones(2))
    assert model.mean is mean
    assert (model.mean.item(), model.last) == (0.0, None)


def test_it_runs_in_the_models_own_mode():
    model = Custom(lambda self, x: (x, x) if self.training else x)
    assert trace_shapes(model.train(), torch.ones(1)).calls[0].output == "([1], [1])"
    assert trace_shapes(model.eval(), torch.ones(1)).calls[0].output == "[1]"


def test_a_lazy_module_shows_its_size_and_stays_lazy():
    model = nn.Sequential(nn.LazyLinear(3))
    shapes = trace_shapes(model, torch.ones(2, 4))
    assert (shapes.total, shapes.calls[1].output) == (15, "[2, 3]")
    assert isinstance(model[0], nn.LazyLinear)


# ---------------------------------------------------------------- the table


def test_the_table_shows_names_indented_shapes_and_the_total():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 1000)))
    model[0][0].bias.requires_grad = False
    text, error = shown(model, torch.randn(2, 4))
    assert error is None
    lines = text.splitlines()
    assert lines[0].split() == ["module", "class", "input", "output", "parameters"]
    assert lines[1].startswith("(model)")
    assert lines[3].startswith("    0.0  ")
    assert lines[3].split() == ["0.0", "Linear", "[2,", "4]", "[2,", "1000]", "5,000"]
    assert lines[-1] == "5,000 parameters, 4,000 of them trainable"


def test_a_narrow_console_folds_and_loses_nothing():
    text, _ = shown(nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 4), width=40)
    assert "…" not in text
