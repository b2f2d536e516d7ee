"""`_target_`s are looked at before they are called."""

from typing import Literal

import pytest

from daypoint.base.errors import ConfigError
from daypoint.record import targets


def network(width: int, dropout: float = 0.0, kind: Literal["a", "b"] = "a", shape: tuple[int, ...] = (1,)):
    """A target with annotations."""


def open_ended(**kwargs: int):
    """A target that takes every name."""


HERE = f"{__name__}.network"


@pytest.mark.parametrize(
    "path", ["torch.optim.SGD", "daypoint.base.errors.ConfigError", HERE, "os.path.join"]
)
def test_a_target_that_exists_is_found(path):
    assert callable(targets.locate(path, "key"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "torch.optim.Adan",
            r"optimizer: cannot import 'torch\.optim\.Adan'.*did you mean torch\.optim\.Adam\?",
        ),
        ("mymodule.Net", r"there is no module 'mymodule'"),
        ("os.sep", r"expected a callable, found 'os\.sep', which is str"),
        ("", r"expected the dotted path of a callable"),
        ("os;system", r"expected the dotted path of a callable"),
        ("..os", r"expected the dotted path of a callable"),
        (3, r"expected the dotted path of a callable, found 3"),
    ],
)
def test_a_target_that_does_not_exist_is_named(path, message):
    with pytest.raises(ConfigError, match=message):
        targets.locate(path, "optimizer")


def test_a_module_that_breaks_on_import_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_model.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"importing broken_model.*failed.*no_such_dependency"):
        targets.locate("broken_model.Net", "model._target_")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"widht": 3}, r"model\.widht: .* takes no argument 'widht'; did you mean width\?"),
        ({"qqq": 3}, r"model\.qqq: .* it takes width, dropout, kind, shape"),
        ({"width": "wide"}, r"model\.width: expected int .*found 'wide' \(str\)"),
        ({"width": 1.5}, r"model\.width: expected int"),
        ({"width": True}, r"model\.width: expected int"),
        ({"dropout": "0.1"}, r"model\.dropout: expected float"),
        ({"kind": "c"}, r"model\.kind: expected"),
        ({"shape": [1, "x"]}, r"model\.shape"),
        ({"shape": 3}, r"model\.shape"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        targets.check_call("model", {"_target_": HERE, **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"width": 3},
        {"dropout": 1},
        {"width": None},
        {"kind": "b"},
        {"shape": [1, 8, 8]},
        {"_partial_": True},
        {},
    ],
)
def test_arguments_that_fit_pass(arguments):
    targets.check_call("model", {"_target_": HERE, **arguments})


def test_a_target_that_takes_every_name_is_not_second_guessed():
    targets.check_call("x", {"_target_": f"{__name__}.open_ended", "anything": "goes"})


def test_a_learning_rate_that_is_text_is_refused_before_torch_sees_it():
    with pytest.raises(ConfigError, match=r"optimizer\.lr: expected float or Tensor .*found 'abc'"):
        targets.check_call("optimizer", {"_target_": "torch.optim.SGD", "lr": "abc"})


def test_nested_targets_are_found_with_their_keys():
    plain = {"model": {"_target_": "a.B", "head": [{"_target_": "c.D"}]}, "x": 1}
    assert [key for key, _ in targets.find(plain)] == ["model", "model.head.0"]


def test_a_mistake_in_a_module_of_the_users_is_told_with_its_place(tmp_path, monkeypatch):
    (tmp_path / "broken_of_this_test.py").write_text("x = 1\ndef f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match=r"importing broken_of_this_test\.Net failed: SyntaxError: .*line 2\)"
    ):
        targets.locate("broken_of_this_test.Net", "model._target_")
