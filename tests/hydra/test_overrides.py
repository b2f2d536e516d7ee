"""What stands on the command line."""

import pytest

from daypoint.base.errors import ConfigError
from daypoint.hydra.overrides import check_quotes


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("resume=out/epoch=1-step=2.ckpt", "\"resume='out/epoch=1-step=2.ckpt'\""),
        ("name=a&b", "\"name='a&b'\""),
    ],
)
@pytest.mark.parametrize("before", [[], ["-m"], ["--config-name=mine"], ["lr=1"]])
def test_a_value_that_needs_quotes_is_shown_with_them(text, typed, before):
    with pytest.raises(ConfigError) as refused:
        check_quotes([*before, text])
    assert str(refused.value).endswith(f"write {typed}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config-dir", "runs/a=b=c"],
        ["-o", "log_cli_format=%(message)s"],
        ["--filter", "x=>3"],
        ["-m", "lr=intervall(0,1)"],
        ["lr=choice(a,b"],
        ["tests/test_x.py::test_y[lr=0.1]"],
        ["model=cnn,mlp", "+a.b={c: 1}", "x='a=b'", "~y", "z=[1,2]"],
    ],
)
def test_what_is_no_override_or_meant_as_a_function_is_left_alone(arguments):
    check_quotes(arguments)
