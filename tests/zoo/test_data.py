"""Data sets in memory: an order that can be repeated, a split that is fair, a fingerprint of everything."""

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from zoo_parts import assert_same, batches, conf

from daypoint.base.errors import ConfigError
from daypoint.zoo import models
from daypoint.zoo.data import Digits, Linear, content_fingerprint, split_rows


@pytest.fixture(scope="module")
def digits():
    return Digits()


def test_digits_are_images_of_one_channel_and_ten_classes(digits):
    x, y = next(iter(digits.train_loader(epoch=0)))
    assert (x.shape, x.dtype) == ((64, 1, 8, 8), torch.float32)
    assert (y.shape, y.dtype) == ((64,), torch.int64)
    assert (digits.task, digits.input_shape, digits.outputs) == ("classification", (1, 8, 8), 10)
    assert (digits.name, digits.rows, digits.classes) == ("digits", 1797, list("0123456789"))


def test_digits_are_scaled_to_minus_one_to_three(digits):
    x = torch.cat([x for x, _ in digits.train_loader(epoch=0)])
    assert (x.min(), x.max()) == (-1, 3)


def test_every_training_row_comes_once_an_epoch_and_the_last_batch_is_what_is_left(digits):
    seen = batches(digits.train_loader(epoch=3))
    rows = torch.cat([x for x, _ in seen]).flatten(1)
    kept = digits._train.tensors[0].flatten(1)
    assert [len(x) for x, _ in seen] == [64] * 22 + [30]
    assert sorted(rows.tolist()) == sorted(kept.tolist())


def test_each_digit_has_the_same_share_of_the_validation_part(digits):
    val = torch.cat([y for _, y in digits.val_loader()]).bincount()
    train = torch.cat([y for _, y in digits.train_loader(epoch=0)]).bincount()
    assert ((val / (val + train) - 0.2).abs() < 0.006).all()


def test_the_order_is_a_function_of_seed_and_epoch(digits):
    # whatever was asked for before, and whatever the global random state is
    again = Digits()
    torch.manual_seed(5)
    np.random.seed(5)
    batches(again.train_loader(epoch=7))
    assert_same(batches(again.train_loader(epoch=2)), batches(digits.train_loader(epoch=2)))


@pytest.mark.parametrize(("seed", "epoch"), [(0, 1), (1, 0), (1, 1), (-1, 0)])
def test_another_seed_or_epoch_is_another_order(digits, seed, epoch):
    first = next(iter(Digits(seed=seed).train_loader(epoch)))[0]
    assert not torch.equal(first, next(iter(digits.train_loader(0)))[0])


def test_the_seed_changes_the_order_and_not_the_split(digits):
    assert_same(batches(Digits(seed=1).val_loader()), batches(digits.val_loader()))


def test_the_split_seed_changes_the_split(digits):
    assert not torch.equal(
        next(iter(Digits(split_seed=1).val_loader()))[0], next(iter(digits.val_loader()))[0]
    )


@pytest.mark.parametrize("start", [0, 1, 10, 22, 23])
def test_start_batch_skips_exactly_that_many(digits, start):
    loader = digits.train_loader(epoch=1, start_batch=start)
    assert len(loader) == 23 - start
    assert_same(batches(loader), batches(digits.train_loader(epoch=1))[start:])


@pytest.mark.parametrize("start", [-1, 24])
def test_a_start_batch_beyond_the_epoch_is_refused(digits, start):
    with pytest.raises(ConfigError, match=rf"expected 0 to 23 .* found {start}; was data.batch_size changed"):
        digits.train_loader(epoch=0, start_batch=start)


# Python 3.12 warns of any fork in a process with threads, and torch's workers are forked on Linux.
@pytest.mark.filterwarnings("ignore:.*use of fork\\(\\) may lead to deadlocks:DeprecationWarning")
def test_worker_processes_change_nothing(digits):
    workers = Digits(num_workers=2)
    assert_same(
        batches(workers.train_loader(epoch=1, start_batch=15)),
        batches(digits.train_loader(epoch=1, start_batch=15)),
    )
    assert_same(batches(workers.val_loader()), batches(digits.val_loader()))


def test_going_through_the_data_leaves_the_global_random_state_alone(digits):
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    batches(digits.train_loader(epoch=0))
    batches(digits.val_loader())
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()


def test_changing_a_batch_in_place_does_not_change_the_data(digits):
    for loader in (digits.train_loader, digits.val_loader):
        arguments = [0] if loader == digits.train_loader else []
        before = batches(loader(*arguments))
        for x, y in loader(*arguments):
            x.zero_()
            y.zero_()
        assert_same(batches(loader(*arguments)), before)


def test_linear_targets_have_the_shape_of_the_answers():
    data = Linear()
    x, y = next(iter(data.train_loader(epoch=0)))
    assert (x.shape, y.shape, y.dtype) == ((8, 16), (8, 1), torch.float32)
    assert models.Linear(data.input_shape, data.outputs)(x).shape == y.shape
    assert (data.task, data.rows, data.classes) == ("regression", 1024, None)


def test_linear_is_linear_up_to_its_noise():
    data = Linear(noise=0.1)
    (x, y), (x_val, y_val) = (
        [torch.cat(part).double() for part in zip(*loader, strict=True)]
        for loader in (data.train_loader(0), data.val_loader())
    )
    one = torch.ones(len(x), 1)
    weight = torch.linalg.lstsq(torch.cat([x, one], 1), y).solution
    error = torch.cat([x_val, torch.ones(len(x_val), 1)], 1) @ weight - y_val
    assert 0.08 < error.square().mean().sqrt() < 0.12


def test_linear_follows_its_number_of_features():
    config = conf(data="linear")
    config.data.features = 5
    assert instantiate(config.data).input_shape == (5,)
    assert list(config.data.input_shape) == [5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Digits(batch_size=0), "data.batch_size: expected a whole number >= 1, found 0"),
        (lambda: Digits(num_workers=-1), "data.num_workers: expected a whole number >= 0, found -1"),
        (lambda: Digits(val_fraction=0), "data.val_fraction: expected above 0 and at most 0.5, found 0"),
        (lambda: Digits(val_fraction=0.6), "data.val_fraction: expected above 0 and at most 0.5, found 0.6"),
        (lambda: Digits(outputs=12), r"data.outputs: expected 10, as digits has it, found 12 in the config"),
        (lambda: Digits(input_shape=[64]), r"data.input_shape: expected \[1, 8, 8\], .* found \[64\]"),
        (lambda: Digits(task="regression"), "data.task: expected classification, .* found regression"),
        (lambda: Linear(rows=1), "expected rows >= 2"),
        (lambda: Linear(noise=float("nan")), "noise >= 0, found .*nan"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_config_says_about_the_data_what_the_data_is():
    for member in ("digits", "linear"):
        config = conf(data=member)
        data = instantiate(config.data)  # refuses a disagreement
        assert (data.name, data.task, data.outputs) == (member, config.data.task, config.data.outputs)
        assert data.input_shape == tuple(config.data.input_shape)


# ---------------------------------------------------------------- the split


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.34, 0.5])
@pytest.mark.parametrize("rows", [2, 3, 7, 50, 101])
def test_a_split_has_each_row_once_and_both_parts(rows, fraction):
    labels = np.arange(rows) % 3 if rows > 5 else None
    train, val = split_rows(rows, fraction, seed=1, labels=labels)
    assert sorted([*train, *val]) == list(range(rows))
    assert len(val) == max(1, round(rows * fraction))
    if labels is not None:
        assert set(labels[train]) == {0, 1, 2}


def test_no_class_is_missing_from_the_train_part():
    labels = np.repeat(np.arange(20), 2)  # two rows of each, half of all held out
    for seed in range(20):
        train, val = split_rows(40, 0.5, seed, labels)
        assert len(set(labels[train])) == len(set(labels[val])) == 20


def test_a_class_of_one_row_is_trained_on():
    labels = np.array([0] * 50 + [1])
    assert all(50 in split_rows(51, 0.5, seed, labels)[0] for seed in range(20))


def test_a_split_in_which_every_class_has_one_row_is_refused():
    with pytest.raises(ConfigError, match=r"at least two rows of a class.* found 0 among 3"):
        split_rows(3, 0.5, 0, np.arange(3))


# ---------------------------------------------------------------- fingerprints


def test_a_fingerprint_has_32_hex_digits_and_is_the_same_each_time(digits):
    assert len(bytes.fromhex(digits.fingerprint())) == 16
    assert Digits().fingerprint() == digits.fingerprint()


def test_a_fingerprint_is_of_the_data_and_not_of_how_it_is_used(digits):
    other = Digits(batch_size=7, val_fraction=0.5, split_seed=3, seed=9)
    assert other.fingerprint() == digits.fingerprint()
    assert Linear(seed=1).fingerprint() == Linear(seed=2).fingerprint() != Linear(data_seed=1).fingerprint()


def test_the_last_of_many_values_changes_the_fingerprint():
    many = np.zeros(1_000_000, dtype=np.float32)
    before = content_fingerprint([("x", many)])
    many[-1] = 1e-30
    assert content_fingerprint([("x", many)]) != before


@pytest.mark.parametrize(
    "other",
    [
        [("b", np.arange(4)), ("t", ["x", None])],
        [("a", np.arange(4).reshape(2, 2)), ("t", ["x", None])],
        [("a", np.arange(4.0)), ("t", ["x", None])],
        [("a", np.arange(4)), ("t", ["x", ""])],
        [("a", np.arange(4)), ("t", ["x", "null"])],
        [("t", ["x", None]), ("a", np.arange(4))],
        [("a", np.arange(4))],
    ],
)
def test_names_shapes_kinds_order_and_missing_values_are_part_of_it(other):
    base = content_fingerprint([("a", np.arange(4)), ("t", ["x", None])])
    assert content_fingerprint(other) != base


def test_numbers_count_by_value():
    assert content_fingerprint([("a", np.arange(4, dtype=np.int16))]) == content_fingerprint(
        [("a", np.arange(4, dtype=">i8"))]
    )
