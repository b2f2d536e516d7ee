"""The members of the config groups, and that they work together."""

import copy
import itertools
import json

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn
from zoo_parts import CONF, conf

from daypoint.base.errors import ConfigError
from daypoint.zoo import losses, models, schedulers, training
from daypoint.zoo.data import Digits

MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
OPTIMIZERS = sorted(path.stem for path in (CONF / "optimizer").glob("*.yaml"))
SCHEDULERS = sorted(path.stem for path in (CONF / "scheduler").glob("*.yaml"))
SHAPES = [[1, 8, 8], [3, 6, 4], [2, 9], [16], [1]]


@pytest.fixture(autouse=True)
def one_thread():
    """Two threads on busy cores wait for each other: ten times slower with models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_every_model_takes_every_kind_of_input(model, shape):
    config = OmegaConf.merge(conf(model=model), {"data": {"input_shape": shape, "outputs": 3}})
    made = instantiate(config.model)
    answer = made(torch.randn(5, *shape))
    assert (answer.shape, answer.dtype) == ((5, 3), torch.float32)
    answer.sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


@pytest.mark.parametrize("shape", [[1, 8, 8], [16]], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_every_model_exports_with_a_batch_of_any_size(model, shape):
    config = OmegaConf.merge(conf(model=model), {"data": {"input_shape": shape, "outputs": 3}})
    made = instantiate(config.model).eval()
    batch = torch.export.Dim("batch", min=1)
    exported = torch.export.export(made, (torch.randn(2, *shape),), dynamic_shapes=({0: batch},)).module()
    for rows in (1, 2, 7):
        x = torch.randn(rows, *shape)
        torch.testing.assert_close(exported(x), made(x))


@pytest.mark.parametrize("model", MODELS)
def test_training_twice_with_one_seed_gives_the_same_weights(model):
    def weights():
        torch.manual_seed(0)
        config = conf(model=model, data="digits", optimizer="adamw")
        if "dropout" in config.model:
            config.model.dropout = 0.1
        made = instantiate(config.model)
        optimizer = instantiate(config.optimizer, params=made.parameters())
        for x, y in itertools.islice(Digits().train_loader(0), 3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(made(x), y).backward()
            optimizer.step()
        return made.state_dict()

    one, other = weights(), weights()
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("model", ["cnn", "transformer", "mlp"])
def test_a_sample_is_answered_alike_in_any_batch(model):
    config = OmegaConf.merge(conf(model=model), {"data": {"input_shape": [1, 8, 8], "outputs": 3}})
    made, x = instantiate(config.model), torch.randn(4, 1, 8, 8)
    torch.testing.assert_close(made(x)[:1], made(x[:1]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: models.Transformer([16], 1, dim=30),
            "model.dim: expected a multiple of model.heads=4, found 30",
        ),
        (
            lambda: models.Transformer([1, 8, 8], 1, patch=3),
            r"model.patch: expected a divisor of height and width \(8 x 8\), found 3; 1, 2, 4, 8 would do",
        ),
        (lambda: models.CNN([16], 1, kernel_size=4), "model.kernel_size: expected an odd number, found 4"),
        (lambda: models.CNN([16], 1, channels=0), "model.channels: expected a whole number >= 1, found 0"),
        (
            lambda: models.MLP([16], 1, dropout=1.0),
            "model.dropout: expected at least 0 and below 1, found 1.0",
        ),
        (lambda: models.MLP([16], 1, width=0), "model.width: expected a whole number >= 1, found 0"),
        (lambda: models.Linear([16], 0), "model.outputs: expected a whole number >= 1, found 0"),
        (
            lambda: models.Linear([1, 2, 3, 4], 1),
            r"model.input_shape: expected \[features\], .* found \[1, 2, 3, 4\]",
        ),
        (lambda: models.Linear([], 1), "model.input_shape"),
        (lambda: models.Linear(None, None), "expected sizes, found None and None"),
    ],
)
def test_sizes_that_cannot_be_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize(
    ("loss", "task", "kind"),
    [
        ("auto", "classification", nn.CrossEntropyLoss),
        ("auto", "regression", nn.MSELoss),
        ("cross_entropy", "classification", nn.CrossEntropyLoss),
        ("mse", "regression", nn.MSELoss),
        ("l1", "regression", nn.L1Loss),
        ("huber", "regression", nn.HuberLoss),
    ],
)
def test_a_loss_fits_its_task(loss, task, kind):
    made = instantiate(OmegaConf.merge(conf(loss=loss), {"data": {"task": task}}).loss)
    assert type(made) is kind
    assert made.reduction == "mean"


@pytest.mark.parametrize(
    ("loss", "task", "remedy"),
    [
        ("cross_entropy", "regression", "use loss=auto or mse, l1 or huber"),
        ("mse", "classification", "use loss=auto or cross_entropy"),
        ("l1", "classification", "use loss=auto or cross_entropy"),
        ("huber", None, "use loss=auto or cross_entropy"),
    ],
)
def test_a_loss_for_the_other_task_is_refused_before_training(loss, task, remedy):
    with pytest.raises(ConfigError) as caught:
        getattr(losses, loss)(task)
    assert str(caught.value).startswith(f"loss={loss}: expected a ")
    assert str(caught.value).endswith(f", found data.task={task}; {remedy}")


def test_a_loss_for_no_task_is_refused():
    with pytest.raises(ConfigError, match=r"loss\.task: expected classification or regression, found None"):
        losses.auto(None)


# ---------------------------------------------------------------- schedules


def stepped(optimizer, scheduler, steps):
    """The learning rate of each of the steps."""
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def sgd(lr=1.0):
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=lr)


def rates_of(make, steps, lr=1.0):
    optimizer = sgd(lr)
    return stepped(optimizer, make(optimizer), steps)


@pytest.mark.parametrize(("optimizer", "scheduler"), list(itertools.product(OPTIMIZERS, SCHEDULERS)))
def test_every_schedule_works_with_every_optimizer(optimizer, scheduler):
    config = conf(optimizer=optimizer, scheduler=scheduler, total_steps=20)
    made = instantiate(config.optimizer, params=[nn.Parameter(torch.ones(2))])
    schedule = instantiate(config.scheduler, optimizer=made)
    assert isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
    rates = stepped(made, schedule, 20)
    assert max(rates) == pytest.approx(config.optimizer.lr)
    assert min(rates) > 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizers_state_is_plain(optimizer):
    made = instantiate(conf(optimizer=optimizer).optimizer, params=[nn.Parameter(torch.ones(2))])
    groups = made.state_dict()["param_groups"]
    assert json.loads(json.dumps(groups))[0]["lr"] == groups[0]["lr"]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("done", [0, 1, 7, 30])
def test_a_schedule_goes_on_exactly_where_it_was(scheduler, done):
    config = conf(optimizer="sgd", scheduler=scheduler, total_steps=30)

    def both():
        optimizer = instantiate(config.optimizer, params=[nn.Parameter(torch.ones(2))])
        return optimizer, instantiate(config.scheduler, optimizer=optimizer)

    optimizer, schedule = both()
    stepped(optimizer, schedule, done)
    state = json.loads(json.dumps([optimizer.state_dict()["param_groups"], schedule.state_dict()]))
    resumed, resumed_schedule = both()
    resumed.load_state_dict({**copy.deepcopy(optimizer.state_dict()), "param_groups": state[0]})
    resumed_schedule.load_state_dict(state[1])
    rest = stepped(optimizer, schedule, 30 - done)
    assert stepped(resumed, resumed_schedule, 30 - done) == rest


def test_none_never_changes_the_rate():
    assert rates_of(schedulers.none, 5) == [1] * 5


def test_cosine_warms_up_in_a_line_and_ends_at_the_final_fraction():
    rates = rates_of(lambda o: schedulers.cosine(o, 100, warmup_fraction=0.1, final_fraction=0.2), 130)
    assert rates[:10] == pytest.approx([i / 10 for i in range(1, 11)])
    assert rates[10] == 1
    assert rates[55] == pytest.approx(0.6)
    assert rates[10:101] == sorted(rates[10:101], reverse=True)
    assert rates[100:] == pytest.approx([0.2] * 30)


def test_cosine_without_warm_up_starts_at_the_full_rate():
    assert rates_of(lambda o: schedulers.cosine(o, 10, warmup_fraction=0), 1) == [1]


def test_onecycle_peaks_at_the_optimizers_rate():
    rates = rates_of(lambda o: schedulers.onecycle(o, 100), 100, lr=0.5)
    assert rates[0] == pytest.approx(0.5 / 25)
    assert max(rates) == rates[29] == pytest.approx(0.5)
    assert rates[-1] == pytest.approx(0.5 / 25 / 1e4)


def test_onecycle_leaves_the_momentum_alone_unless_it_is_asked_to_cycle_it():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.8)
    stepped(optimizer, schedulers.onecycle(optimizer, 10), 5)
    assert optimizer.param_groups[0]["momentum"] == 0.8
    schedulers.onecycle(optimizer, 10, cycle_momentum=True)
    assert optimizer.param_groups[0]["momentum"] == pytest.approx(0.95)


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.5, 0.99])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_short_runs_have_a_schedule_too(steps, fraction):
    for make in (
        lambda o: schedulers.onecycle(o, steps, warmup_fraction=fraction),
        lambda o: schedulers.cosine(o, steps, warmup_fraction=fraction),
        lambda o: schedulers.step(o, steps),
    ):
        assert all(0 < rate <= 1 for rate in rates_of(make, steps))


def test_step_drops_at_equal_distances():
    rates = rates_of(lambda o: schedulers.step(o, 12, gamma=0.5, drops=2), 12)
    assert rates == [1] * 4 + [0.5] * 4 + [0.25] * 4


def test_step_takes_the_distance_in_steps():
    assert rates_of(lambda o: schedulers.step(o, 12, gamma=0.5, step_size=5), 6) == [1] * 5 + [0.5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda o: schedulers.cosine(o, 10, warmup_fraction=1),
            "scheduler.warmup_fraction: expected .* found 1",
        ),
        (
            lambda o: schedulers.cosine(o, 10, final_fraction=2),
            "scheduler.final_fraction: expected 0 to 1, found 2",
        ),
        (lambda o: schedulers.onecycle(o, 10, warmup_fraction=-1), "scheduler.warmup_fraction"),
        (lambda o: schedulers.step(o, 10, step_size=0), "step_size >= 1 or null, found 3 and 0"),
    ],
)
def test_schedules_that_cannot_be_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make(sgd())


def test_cycling_the_momentum_of_an_optimizer_without_one_is_refused():
    optimizer = torch.optim.Adagrad([nn.Parameter(torch.ones(2))])
    with pytest.raises(ConfigError, match="with momentum or betas, found Adagrad"):
        schedulers.onecycle(optimizer, 10, cycle_momentum=True)


# ---------------------------------------------------------------- all together


def trained(epochs, **choice):
    """Train as train.py does; the data, the model, and its answers to the validation part with what is right."""
    torch.manual_seed(0)
    data = instantiate(conf(**choice).data)
    config = conf(total_steps=epochs * len(data.train_loader(0)), loss="auto", **choice)
    model, criterion = instantiate(config.model), instantiate(config.loss)
    optimizer = instantiate(config.optimizer, params=model.parameters())
    scheduler = instantiate(config.scheduler, optimizer=optimizer)
    for epoch in range(epochs):
        for x, y in data.train_loader(epoch):
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            scheduler.step()
    with torch.no_grad():
        return [
            torch.cat(part)
            for part in zip(*[(model.eval()(x), y) for x, y in data.val_loader()], strict=True)
        ]


@pytest.mark.parametrize(
    ("model", "optimizer", "scheduler", "epochs", "least"),
    [
        ("mlp", "adamw", "cosine", 20, 0.97),
        ("mlp", "sgd", "none", 15, 0.95),
        ("linear", "sgd", "cosine", 20, 0.95),
        ("cnn", "adam", "onecycle", 4, 0.95),
        ("transformer", "adamw", "cosine", 4, 0.95),
    ],
)
def test_the_digits_are_learnt(model, optimizer, scheduler, epochs, least):
    scores, right = trained(epochs, data="digits", model=model, optimizer=optimizer, scheduler=scheduler)
    assert (scores.argmax(1) == right).double().mean() >= least


@pytest.mark.parametrize(("model", "optimizer"), [("linear", "sgd"), ("linear", "adamw"), ("mlp", "sgd")])
def test_the_linear_regression_is_learnt_down_to_its_noise(model, optimizer):
    answers, right = trained(5, data="linear", model=model, optimizer=optimizer, scheduler="cosine")
    least = 0.1**2
    assert least / 2 < nn.functional.mse_loss(answers, right) < 2.5 * least


@pytest.mark.parametrize(
    ("optimizer", "scheduler", "message"),
    [
        (torch.optim.LBFGS, torch.optim.lr_scheduler.ConstantLR, "optimizer: .*LBFGS, which needs closure"),
        (
            torch.optim.SGD,
            torch.optim.lr_scheduler.ReduceLROnPlateau,
            "scheduler: .*ReduceLROnPlateau, which needs metrics",
        ),
    ],
)
def test_what_train_py_cannot_step_is_refused_before_training(optimizer, scheduler, message):
    made = optimizer(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=message):
        training.check_steps(made, scheduler(made))


def test_what_steps_without_an_argument_passes():
    made = torch.optim.RMSprop(torch.nn.Linear(1, 1).parameters())
    training.check_steps(made, torch.optim.lr_scheduler.ExponentialLR(made, gamma=0.9))
