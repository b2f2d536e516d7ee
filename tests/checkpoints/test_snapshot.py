"""Snapshots: a training that is put back goes on to the very same bytes, and what does not fit is refused
whole.
"""

from __future__ import annotations

import random
import time
import warnings

import numpy as np
import orjson
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

from daypoint.base.errors import CheckpointError
from daypoint.checkpoints import snapshot


class Net(nn.Module):
    """Dropout draws random numbers, batch norm has buffers, the last layer is tied to the first."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


class Training:
    def __init__(self, make_optimizer, make_scheduler=None, seed=0, dtype=torch.float32):
        torch.manual_seed(seed)
        self.dtype = dtype
        self.model = Net(dtype)
        self.optimizer = make_optimizer(self.model.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # SequentialLR calls its members as torch itself says one should not
            self.scheduler = make_scheduler(self.optimizer) if make_scheduler else None

    def run(self, steps):
        for _ in range(steps):
            x = torch.randn(8, 6, dtype=self.dtype) + np.random.rand() + random.random()

            def closure(x=x):
                self.optimizer.zero_grad()
                loss = self.model(x).square().mean()
                loss.backward()
                return loss

            loss = self.optimizer.step(closure)
            if isinstance(self.scheduler, schedulers.ReduceLROnPlateau):
                self.scheduler.step(loss.detach())
            elif self.scheduler is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)
                    self.scheduler.step()
        return self

    def take(self, **more):
        taken = snapshot.take(self.model, self.optimizer, self.scheduler, **more)
        # Through JSON, as a file would.
        document = orjson.loads(orjson.dumps(taken.document))
        return snapshot.Snapshot(taken.weights, taken.metadata, taken.tensors, document)

    def put_back(self, taken):
        return snapshot.put_back(
            taken, "here", model=self.model, optimizer=self.optimizer, scheduler=self.scheduler
        )

    def everything(self):
        """The bytes of the weights, the optimizer's state and the next random numbers."""
        taken = snapshot.take(self.model, self.optimizer, self.scheduler)
        tensors = {**taken.weights, **{f"state {name}": t for name, t in taken.tensors.items()}}
        raw = {name: t.clone().reshape(-1).view(torch.uint8).numpy().tobytes() for name, t in tensors.items()}
        return raw, taken.document


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adam, lr a tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adafactor": lambda p: torch.optim.Adafactor(p),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3, history_size=3),
    "muon": lambda p: torch.optim.Muon([q for q in p if q.ndim == 2], lr=0.01),
    "two groups": lambda p: torch.optim.SGD(
        [{"params": [q], "lr": 0.1 / (i + 1)} for i, q in enumerate(p)], momentum=0.5
    ),
    "named": lambda p: torch.optim.SGD(
        [(f"_orig_mod.{i}", q) for i, q in enumerate(p)], lr=0.1, momentum=0.5
    ),
}


SCHEDULERS = {
    "step": lambda o: schedulers.StepLR(o, 2),
    "multistep": lambda o: schedulers.MultiStepLR(o, [2, 5, 5]),
    "constant": lambda o: schedulers.ConstantLR(o, 0.5, 3),
    "linear": lambda o: schedulers.LinearLR(o, 0.1, total_iters=6),
    "exponential": lambda o: schedulers.ExponentialLR(o, 0.9),
    "polynomial": lambda o: schedulers.PolynomialLR(o, 10),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, 10),
    "cosine restarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
    "onecycle": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=20),
    "cyclic": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "cyclic, own scale": lambda o: schedulers.CyclicLR(
        o, 0.01, 0.1, step_size_up=3, scale_fn=lambda x: 0.9**x
    ),
    "lambda": lambda o: schedulers.LambdaLR(o, lambda step: 0.9**step),
    "multiplicative": lambda o: schedulers.MultiplicativeLR(o, lambda step: 0.9),
    "plateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0, threshold=1.0),
    "sequential": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=3), schedulers.CosineAnnealingLR(o, 8)], [3]
    ),
    "chained": lambda o: schedulers.ChainedScheduler(
        [schedulers.ExponentialLR(o, 0.9), schedulers.StepLR(o, 3)]
    ),
    "swa": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.001, anneal_epochs=5),
}


def resumes_bit_for_bit(make_optimizer, make_scheduler=None, **options):
    unbroken = Training(make_optimizer, make_scheduler, **options).run(4)
    taken = unbroken.take()
    expected = unbroken.run(5).everything()
    resumed = Training(make_optimizer, make_scheduler, seed=99, **options).run(2)
    resumed.put_back(taken)
    return resumed.run(5).everything() == expected


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_goes_on_to_the_same_bytes_with_every_optimizer(make):
    assert resumes_bit_for_bit(make)


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_training_goes_on_to_the_same_bytes_with_every_scheduler(make):
    assert resumes_bit_for_bit(OPTIMIZERS["sgd momentum"], make)


@pytest.mark.parametrize("name", ["adam", "asgd", "nadam", "sgd momentum"])
def test_training_in_bfloat16_goes_on_to_the_same_bytes(name):
    assert resumes_bit_for_bit(OPTIMIZERS[name], dtype=torch.bfloat16)


def test_without_the_random_numbers_the_bytes_would_differ():
    unbroken = Training(OPTIMIZERS["adam"]).run(4)
    taken = unbroken.take()
    expected = unbroken.run(5).everything()
    resumed = Training(OPTIMIZERS["adam"], seed=99)
    resumed.put_back(taken)
    torch.manual_seed(1)
    assert resumed.run(5).everything() != expected


def test_taking_a_snapshot_draws_no_random_numbers():
    training = Training(OPTIMIZERS["adam"]).run(1)
    before = training.everything()
    training.take()
    assert training.everything() == before


def test_a_copied_snapshot_does_not_follow_the_training():
    training = Training(OPTIMIZERS["adam"]).run(1)
    taken = training.take()
    before = {name: tensor.clone() for name, tensor in {**taken.weights, **taken.tensors}.items()}
    training.run(1)
    assert all(
        torch.equal(tensor, before[name]) for name, tensor in {**taken.weights, **taken.tensors}.items()
    )


def test_a_model_of_many_parts_is_taken_in_linear_time():
    model = nn.ModuleList([nn.Linear(1, 1) for _ in range(1500)])
    started = time.process_time()
    snapshot.take(model)
    assert time.process_time() - started < 2  # 0.1 s; 10 s when each parameter looks at each module


def test_the_gradient_scaler_comes_back():
    training = Training(OPTIMIZERS["sgd"])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(training.model(torch.randn(8, 6)).mean()).backward()
    scaler.step(training.optimizer)
    scaler.update(512.0)
    taken = training.take(scaler=scaler)
    fresh = torch.amp.GradScaler("cpu")
    snapshot.put_back(taken, "here", model=training.model, scaler=fresh)
    assert fresh.state_dict() == scaler.state_dict()
    assert fresh.get_scale() == 512.0


def test_gradients_come_back_in_the_middle_of_an_accumulation():
    training = Training(OPTIMIZERS["sgd"])
    training.model(torch.randn(8, 6)).mean().backward()
    gradients = {name: p.grad.clone() for name, p in training.model.named_parameters()}
    taken = training.take(gradients=True)
    fresh = Training(OPTIMIZERS["sgd"], seed=1)
    fresh.put_back(taken)
    assert all(torch.equal(p.grad, gradients[name]) for name, p in fresh.model.named_parameters())


def test_extra_comes_back_as_it_was_given():
    training = Training(OPTIMIZERS["sgd"])
    extra = {"position": (3, 17), "order": torch.randperm(5), 5: np.float32(0.1), "nothing": None}
    back = training.put_back(training.take(extra=extra)).extra
    assert back["position"] == (3, 17)
    assert torch.equal(back["order"], extra["order"])
    assert type(back[5]) is np.float32
    assert back["nothing"] is None


# ---------------------------------------------------------------- names


@pytest.fixture
def process_group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def compiled(model):
    return torch.compile(model, backend="eager")  # the wrapper is what matters here, and it is the same


def ddp(model):
    return nn.parallel.DistributedDataParallel(model)


WRAPPINGS = {
    "compile": compiled,
    "ddp": ddp,
    "data parallel": nn.DataParallel,
    "ddp of compile": lambda m: ddp(compiled(m)),
    "compile of ddp": lambda m: compiled(ddp(m)),
    "compile of data parallel of compile": lambda m: compiled(nn.DataParallel(compiled(m))),
}


class Nested(nn.Module):
    """Its own children bear the names that wrappers use."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Sequential(nn.Linear(2, 2))
        self._orig_mod = nn.Linear(2, 2)
        self._orig_mod.module = nn.Linear(2, 2)
        self.other = nn.BatchNorm1d(2)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("wrap", WRAPPINGS.values(), ids=WRAPPINGS)
def test_the_names_in_a_snapshot_are_those_of_the_bare_model(wrap):
    bare = Nested()
    assert list(snapshot.take(wrap(bare)).weights) == list(bare.state_dict())


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("wrap", WRAPPINGS.values(), ids=WRAPPINGS)
def test_weights_move_between_wrapped_and_bare_models(wrap):
    source = Nested()
    taken = snapshot.take(wrap(source))
    bare, wrapped = Nested(), wrap(Nested())
    for target in (bare, wrapped):
        snapshot.put_weights(target, taken.weights, taken.metadata, "here")
        assert all(
            torch.equal(a, b)
            for a, b in zip(source.state_dict().values(), target.state_dict().values(), strict=True)
        )


def test_a_compiled_part_leaves_no_trace_in_the_names():
    model = nn.Sequential(nn.Linear(2, 2), compiled(nn.Linear(2, 2)))
    assert list(snapshot.take(model).weights) == ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.mark.usefixtures("process_group")
def test_an_optimizer_of_a_wrapped_model_resumes_on_the_bare_one():
    wrapped = compiled(ddp(nn.Linear(2, 2)))
    taken = snapshot.take(wrapped, torch.optim.Adam(wrapped.parameters()))
    bare = nn.Linear(2, 2)
    snapshot.put_back(taken, "here", model=bare, optimizer=torch.optim.Adam(bare.parameters()))
    assert torch.equal(bare.weight, taken.weights["weight"])


def test_tied_weights_come_back_tied_and_equal():
    source, target = Net(), Net()
    taken = snapshot.take(source)
    snapshot.put_weights(target, taken.weights, taken.metadata, "here")
    assert target.last.weight is target.first.weight
    assert torch.equal(target.first.weight, source.first.weight)


class Odd(nn.Module):
    """State that safetensors cannot hold by itself."""

    def __init__(self, extra=None) -> None:
        super().__init__()
        self.register_buffer("phase", torch.randn(3, dtype=torch.complex128))
        self.linear = nn.Linear(2, 2)
        self.extra = extra

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


def test_complex_buffers_and_extra_state_of_a_module_come_back():
    source, target = Odd({"seen": (1, 2), "table": torch.arange(3)}), Odd()
    taken = snapshot.take(source)
    snapshot.put_weights(target, taken.weights, taken.metadata, "here")
    assert torch.equal(target.phase, source.phase)
    assert target.extra["seen"] == (1, 2)
    assert target.extra["table"].tolist() == [0, 1, 2]


class Versioned(nn.Module):
    """Takes state without a version number for that of its first version, as some of torch's own modules do."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(2))

    def _load_from_state_dict(self, state, prefix, metadata, *more):
        if metadata.get("version", 1) < 2:
            state[f"{prefix}scale"] = state[f"{prefix}scale"] * 100
        super()._load_from_state_dict(state, prefix, metadata, *more)


def test_a_module_does_not_take_its_state_for_that_of_an_older_version():
    source, target = nn.Sequential(Versioned()), nn.Sequential(Versioned())
    taken = snapshot.take(source)
    snapshot.put_weights(target, taken.weights, taken.metadata, "here")
    assert torch.equal(target[0].scale, source[0].scale)


# ---------------------------------------------------------------- what does not fit


def test_weights_that_do_not_fit_are_listed_and_the_model_is_unchanged():
    taken = snapshot.take(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1)))
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(CheckpointError) as caught:
        snapshot.put_weights(model, taken.weights, taken.metadata, "weights.safetensors")
    message = str(caught.value)
    assert message.startswith("weights.safetensors: the weights do not fit the model")
    assert "missing in the file: 3.bias, 3.weight" in message
    assert "unexpected in the file: 2.bias, 2.weight" in message
    assert "1.weight (file: (3, 3) torch.float32, model: (4, 3) torch.float32)" in message
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_model_of_another_dtype_or_on_the_meta_device_is_refused():
    taken = snapshot.take(nn.Linear(2, 2))
    with pytest.raises(
        CheckpointError, match=r"weight \(file: \(2, 2\) torch.float32, model: \(2, 2\) torch.float16"
    ):
        snapshot.put_weights(nn.Linear(2, 2, dtype=torch.float16), taken.weights, taken.metadata, "here")
    with pytest.raises(CheckpointError, match="to_empty"):
        snapshot.put_weights(nn.Linear(2, 2, device="meta"), taken.weights, taken.metadata, "here")


def test_a_lazy_model_cannot_be_saved_before_its_first_batch():
    with pytest.raises(CheckpointError, match=r"^model\.weight: .*run one batch"):
        snapshot.take(nn.LazyLinear(2))


def test_the_state_of_adam_is_refused_by_sgd_and_nothing_changes():
    taken = Training(OPTIMIZERS["adam"]).run(1).take()
    other = Training(OPTIMIZERS["sgd"], seed=5)
    before = other.everything()
    with pytest.raises(CheckpointError, match="optimizer: the checkpoint holds Adam, found SGD"):
        other.put_back(taken)
    assert other.everything() == before


def test_another_scheduler_is_refused():
    taken = Training(OPTIMIZERS["sgd"], SCHEDULERS["step"]).take()
    with pytest.raises(
        CheckpointError, match="scheduler: the checkpoint holds StepLR, found CosineAnnealingLR"
    ):
        Training(OPTIMIZERS["sgd"], SCHEDULERS["cosine"]).put_back(taken)


def test_an_optimizer_that_was_not_saved_cannot_be_restored():
    model = nn.Linear(2, 2)
    taken = snapshot.take(model)
    with pytest.raises(CheckpointError, match="it holds no optimizer; save with optimizer="):
        snapshot.put_back(taken, "here", model=model, optimizer=torch.optim.SGD(model.parameters()))


def test_parameters_in_another_order_are_refused():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    taken = snapshot.take(model, torch.optim.Adam(model.parameters()))
    turned = torch.optim.Adam(reversed(list(model.parameters())))
    with pytest.raises(CheckpointError, match="parameters or their order differ"):
        snapshot.put_back(taken, "here", model=model, optimizer=turned)


def test_a_setting_that_the_checkpoint_replaces_is_reported():
    taken = Training(lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.01)).run(1).take()
    resumed = Training(lambda p: torch.optim.AdamW(p, lr=0.001, weight_decay=0.01))
    assert resumed.put_back(taken).overridden == {"lr": (0.001, 0.1)}


@pytest.mark.parametrize("name", ["cosine", "onecycle", "cyclic"])
def test_what_a_scheduler_moves_is_no_replaced_setting(name):
    taken = Training(OPTIMIZERS["sgd momentum"], SCHEDULERS[name]).run(3).take()
    assert Training(OPTIMIZERS["sgd momentum"], SCHEDULERS[name]).put_back(taken).overridden == {}


def test_something_that_cannot_be_stored_is_named():
    with (
        pytest.raises(CheckpointError, match=r"^extra\.reader: cannot store a _io\.TextIOWrapper"),
        open(__file__) as file,
    ):
        snapshot.take(nn.Linear(1, 1), extra={"reader": file})


def test_random_numbers_of_devices_that_are_not_here_are_noted():
    training = Training(OPTIMIZERS["sgd"])
    if torch.cuda.is_available():
        pytest.skip("this machine has them")
    document, tensors = dict(training.take().document), dict(training.take().tensors)
    tensors["cuda0"] = torch.zeros(16, dtype=torch.uint8)
    document["dict"]["rng"]["dict"]["cuda"] = [{"tensor": "cuda0"}]
    taken = training.take()
    taken = snapshot.Snapshot(taken.weights, taken.metadata, tensors, document)
    assert training.put_back(taken).notes == ["random numbers: saved for 1 CUDA devices, this machine has 0"]
