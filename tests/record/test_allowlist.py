"""The allow-list: a card may call what models are made of, what the project's own conf/ names, and nothing else."""

import pytest

from daypoint.base.errors import ConfigError
from daypoint.record import allowlist

HOSTILE = [
    "os.system",
    "torch.load",
    "torch.hub.load",
    "pathlib.Path.write_text",
    "builtins.eval",
    "subprocess.Popen",
    "torch.nn.modules.module.torch.load",
    "torch.nn.functional.importlib.import_module",
    "torch.nn.modules.module.warnings.warn",
    "daypoint.zoo.data.hashlib.new",
    "daypoint.zoo.table.os.system",
    "daypoint.zoo.table.Path",
    "torch.nn",
    "torch.nnx.Linear",
    "daypoint.hydra.app.instantiate",
    "my_package.Net",
    # Functions that call, or import, what they are given.
    "torch.nn.utils.rnn.bind",
    "torch.nn.utils._deprecation_utils.lazy_deprecated_import",
    "torch.nn.Module.apply",
    "torch.nn.functional.has_torch_function",
    "torch.nn.utils.stateless.functional_call",
    "torch.nn.functional.cross_entropy",
    "torch.optim.swa_utils.get_ema_avg_fn",
    "torch.nn.modules._functions.SyncBatchNorm",
    "torch.nn.utils.rnn.PackedSequence",
]


@pytest.mark.parametrize("path", HOSTILE)
def test_what_is_no_part_of_a_model_is_refused(path):
    with pytest.raises(ConfigError, match=r"(?s)model\._target_: .*expected"):
        allowlist.check({"model": {"_target_": path}}, ())


@pytest.mark.parametrize(
    "path",
    ["torch.nn.Linear", "torch.nn.modules.linear.Linear", "torch.optim.AdamW", "torch.optim.lr_scheduler.StepLR",
     "daypoint.zoo.models.MLP"],
)  # fmt: skip
def test_torch_and_the_zoo_are_allowed(path):
    allowlist.check({"model": {"_target_": path}}, ())


def test_a_target_deep_inside_is_found():
    config = {"model": {"_target_": "torch.nn.Sequential", "_args_": [[{"_target_": "os.system"}]]}}
    with pytest.raises(ConfigError, match=r"model\._args_\.0\.0\._target_.*os\.system"):
        allowlist.check(config, ())


@pytest.mark.parametrize("path", [None, 3, "", {"a": 1}, ["torch.nn.Linear"]])
def test_a_target_that_is_no_path_is_refused(path):
    with pytest.raises(ConfigError, match=r"model\._target_"):
        allowlist.check({"model": {"_target_": path}}, ())


def test_a_refused_module_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "bomb_of_this_test.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError):
        allowlist.check({"model": {"_target_": "bomb_of_this_test.Net"}}, ())


def test_the_conf_of_the_project_allows_just_what_it_names(tmp_path):
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf/model/mine.yaml").write_text(
        "_target_: shutil.copy  # ours\nhead:\n  _target_: 'json.loads'\n"
    )
    allow = allowlist.of_project(tmp_path)
    allowlist.check({"model": {"_target_": "shutil.copy", "head": {"_target_": "json.loads"}}}, allow)
    with pytest.raises(ConfigError, match=r"shutil\.rmtree"):
        allowlist.check({"model": {"_target_": "shutil.rmtree"}}, allow)


def test_pyproject_allows_modules(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.daypoint]\nallow = ["json"]\n')
    allow = allowlist.of_project(tmp_path)
    allowlist.check({"model": {"_target_": "json.JSONDecoder"}}, allow)
    with pytest.raises(ConfigError, match="codecs"):
        allowlist.check({"model": {"_target_": "json.codecs.open"}}, allow)


@pytest.mark.parametrize("text", ['allow = "json"', "allow = [1]", 'allow = [""]'])
def test_a_list_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(f"[tool.daypoint]\n{text}\n")
    with pytest.raises(ConfigError, match=r"tool\.daypoint\.allow: expected a list"):
        allowlist.of_project(tmp_path)


def test_a_project_without_a_list_has_an_empty_one(tmp_path):
    assert allowlist.of_project(tmp_path) == ()
