"""What a training script needs beside its loop."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from daypoint.base.errors import ConfigError
from daypoint.zoo.data import Digits, Linear
from daypoint.zoo.training import check_outputs, check_steps

CPU = torch.device("cpu")


def data(x, y, task, outputs):
    return SimpleNamespace(train_loader=lambda epoch: iter([(x, y)]), task=task, outputs=outputs)


CLASSES = data(torch.zeros(4, 3), torch.tensor([0, 1, 2, 1]), "classification", 3)
NUMBERS = data(torch.zeros(4, 3), torch.zeros(4, 1), "regression", 1)


def test_models_that_fit_their_data_pass_and_draw_no_random_number():
    net, line = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10)), nn.Linear(16, 1)
    before = torch.get_rng_state()
    check_outputs(net, nn.CrossEntropyLoss(), Digits(), CPU)
    check_outputs(line, nn.MSELoss(), Linear(rows=64), CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert net.training


def test_more_classes_than_there_are_is_no_error():
    check_outputs(nn.Linear(3, 1000), nn.CrossEntropyLoss(), CLASSES, CPU)


def test_a_class_too_few_is_refused_before_the_loss_would_fail():
    message = r"model: expected outputs of shape \[4, 3\].*data\.outputs=3.*CrossEntropyLoss, found \[4, 2\]; give it outputs"
    with pytest.raises(ConfigError, match=message):
        check_outputs(nn.Linear(3, 2), nn.CrossEntropyLoss(), CLASSES, CPU)


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.L1Loss(), nn.HuberLoss(), nn.SmoothL1Loss()])
def test_outputs_that_would_be_broadcast_against_the_targets_are_refused(loss):
    flat = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    with pytest.raises(ConfigError, match=r"expected outputs of shape \[4, 1\].*found \[4\]"):
        check_outputs(flat, loss, NUMBERS, CPU)


def test_a_loss_of_ones_own_may_compare_what_it_likes():
    check_outputs(nn.Linear(3, 7), lambda output, y: output.mean(), NUMBERS, CPU)


def test_a_loss_that_is_derived_from_torchs_may_compare_what_it_likes_too():
    class Uncertain(nn.MSELoss):
        pass

    check_outputs(nn.Linear(3, 2), Uncertain(), NUMBERS, CPU)


def test_targets_may_be_probabilities_of_classes():
    soft = data(torch.zeros(4, 3), torch.full((4, 3), 1 / 3), "classification", 3)
    check_outputs(nn.Linear(3, 3), nn.CrossEntropyLoss(), soft, CPU)


def test_a_scheduler_that_is_a_wrapper_is_let_through():
    class Wrapper:
        def __getattr__(self, name):
            return lambda: None

    class Static:
        @staticmethod
        def step(): ...

    check_steps(torch.optim.SGD([nn.Parameter(torch.zeros(1))]), Wrapper())
    check_steps(torch.optim.SGD([nn.Parameter(torch.zeros(1))]), Static())


def test_a_model_that_cannot_take_the_batch_says_so_in_the_training():
    net = nn.Linear(5, 3).train()
    check_outputs(net, nn.CrossEntropyLoss(), CLASSES, CPU)
    assert net.training
