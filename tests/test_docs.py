"""README.md and docs/ are run as a reader would run them, and the reference is what the code says.

A page is run from its top to its bottom in a project of its own, which is like a fresh clone:

- ```bash blocks by bash, with `python`, `daypoint` and `mlflow` those of this environment. A command that fails fails the test.
- ```python blocks in one Python session a page, in the project's directory. A block whose first line is `# name.py` is a file
  instead, and so is a ```yaml block whose first line is `# name.yaml`: it is put there for the commands that follow.
- ```pycon blocks as doctests, `...` stands for anything.
- A comment right above a block says what is special about it: `<!-- not run: why -->`, or `<!-- fails: why -->` for commands that
  end with another exit code than 0.

Pages name the day 20260328. When they are run, it is today, and `20260328/1415` is the first run of the page, `20260328/1620` the
second, `20260328/sweep-1502` the first sweep. Nothing else is replaced.

`python tests/test_docs.py` writes the generated parts of the reference anew.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import math
import os
import re
import shlex
import subprocess
import textwrap
import tomllib
from dataclasses import MISSING, dataclass, fields
from datetime import date
from importlib import import_module
from pathlib import Path

import pytest
import typer

import daypoint
from daypoint.base import day
from daypoint.base.errors import ScalarError
from daypoint.cli import app as cli
from daypoint.record import config

REPOSITORY = Path(__file__).parent.parent
DOCS = REPOSITORY / "docs"
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted(p for p in DOCS.rglob("*.md") if p.parent.name != "decisions"),
]
QUICK = {"scalars.md", "config.md"}
"""Pages that are run in less than ten seconds."""
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>not run|fails): (?P<why>[^\n]*) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
KINDS = ("bash", "python", "pycon", "yaml", "text")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    kind: str
    text: str
    mark: str | None
    why: str | None
    line: int

    @property
    def file(self) -> str | None:
        """The file that it is, if it is one."""
        match = re.match(r"# (\S+\.(?:py|yaml))\n", self.text)
        return match[1] if match and self.kind in ("python", "yaml") else None

    @property
    def is_run(self) -> bool:
        return self.mark != "not run" and (self.kind in ("bash", "python", "pycon") or self.file is not None)


def blocks(page):
    text = page.read_text(encoding="utf-8")
    return [
        Block(m["kind"], m["text"], m["mark"], m["why"], text.count("\n", 0, m.start("kind")) + 1)
        for m in _BLOCK.finditer(text)
    ]


def name_of(page):
    return page.relative_to(REPOSITORY).as_posix()


RUN = [page for page in PAGES if any(block.is_run for block in blocks(page))]


# ---------------------------------------------------------------- what every page has to keep to


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_of_a_kind_that_is_run_or_says_why_it_is_not(page):
    text = page.read_text(encoding="utf-8")
    found = blocks(page)
    assert len(re.findall(r"^```", text, re.M)) == 2 * len(found)
    for block in found:
        assert block.kind in KINDS, f"line {block.line}: ```{block.kind}"
        assert block.mark is None or len(block.why.split()) >= 2, f"line {block.line}: no reason"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file_or_a_heading(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in slugs, target


def commands(page):
    """Every `daypoint …` command of a page, in blocks (run or not) and in the running text, as lists of words."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block in blocks(page) if block.kind == "bash" for line in block.text.splitlines()]
    lines += re.findall(r"`(daypoint [^`]+)`", _BLOCK.sub("", text))
    for line in lines:
        words = shlex.split(line.replace("…", ""), comments=True)
        for i, word in enumerate(words):
            if word == "daypoint" and (i == 0 or words[i - 1] in ("|", "&&", ";") or "=" in words[i - 1]):
                end = next((j for j in range(i, len(words)) if words[j] in ("|", "&&", ";", ">")), len(words))
                yield words[i + 1 : end]


COMMANDS = typer.main.get_command(cli.app)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_and_option_is_one_that_daypoint_has(page):
    for words in commands(page):
        if not words:
            continue
        if words[0].startswith("-"):
            assert words[0] in ("--help", "--version", "--install-completion", "--show-completion")
            continue
        assert words[0] in COMMANDS.commands, words
        known = {"--help", *(option for p in COMMANDS.commands[words[0]].params for option in p.opts)}
        options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert options <= known, words


def test_the_readme_is_short():
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_every_page_is_in_the_index():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    for page in PAGES:
        if page.is_relative_to(DOCS) and page.name != "README.md":
            assert f"({page.relative_to(DOCS).as_posix()})" in index


# ---------------------------------------------------------------- running a page

SESSION = """
import json, sys, traceback
sys.path.insert(0, "")
names = {"__name__": "__main__"}
for line in sys.stdin:
    try:
        exec(compile(json.loads(line), "<block>", "exec"), names)
        answer = None
    except BaseException:
        answer = traceback.format_exc()
    print("\\n\\0" + json.dumps(answer), flush=True)
"""


class Reader:
    """Who reads a page and does what it says, in a project."""

    def __init__(self, project):
        self.project = project
        self.session = None
        self.names = {}
        import warm  # found by pytest, not by `python tests/test_docs.py`

        self.python = warm.python()
        tools = Path(self.python).parent
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("MLFLOW_", "DAYPOINT_", "HYDRA_")) and key not in ("RANK", "WORLD_SIZE")
        }
        self.environment = {**kept, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}

    def today(self, text):
        """The page's examples as what they are in this project."""
        outputs = self.project.outputs
        runs = [day.address_of(run, outputs) for run in day.run_directories(outputs)]
        sweeps = sorted(path.name for path in outputs.glob("*/sweep-*"))
        there = dict(zip(("20260328/1415", "20260328/1620"), runs, strict=False))
        if sweeps:
            there["20260328/sweep-1502"] = f"20260328/{sweeps[0]}"
        for example, found in there.items():
            text = text.replace(example, found)
        return text.replace("20260328", f"{date.today():%Y%m%d}")

    def read(self, block):
        if block.file is not None:
            path = self.project.root / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.kind == "bash":
            self._bash(block.text, block.mark == "fails")
        elif block.kind == "python":
            self._python(self.today(block.text))
        else:
            self._doctests(block)

    def _bash(self, text, fails):
        for line in re.split(r"(?<!\\)\n", text.strip()):
            command = self.today(line)
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.project.root,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert (done.returncode != 0) == fails, f"{command}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr, f"{command}\n{done.stderr}"

    def _python(self, text):
        if self.session is None:
            self.session = subprocess.Popen(
                [self.python, "-W", "error::UserWarning", "-c", SESSION],
                cwd=self.project.root,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        self.session.stdin.write(json.dumps(text) + "\n")
        self.session.stdin.flush()
        for line in self.session.stdout:
            if line.startswith("\0"):
                answer = json.loads(line[1:])
                assert answer is None, f"{text}\n{answer}"
                return
        raise AssertionError(f"{text}\nthe session ended")

    def _doctests(self, block):
        test = doctest.DocTestParser().get_doctest(block.text, self.names, "page", None, block.line)
        told = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(test, out=told.append, clear_globs=False)
        self.names = test.globs
        assert not runner.failures, "".join(told)

    def close(self):
        if self.session is not None:
            self.session.stdin.close()
            self.session.wait(60)
            self.session.stdout.close()


@pytest.fixture
def reader(project):
    (project.root / "examples").mkdir()
    for path in (REPOSITORY / "examples").glob("*.py"):
        (project.root / "examples" / path.name).write_text(path.read_text())
    reader = Reader(project)
    yield reader
    reader.close()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=() if page.name in QUICK else pytest.mark.slow)
        for page in RUN
    ],
)
def test_a_page_works_from_top_to_bottom(page, reader):
    for block in blocks(page):
        if block.is_run:
            reader.read(block)


@pytest.mark.slow
def test_every_file_of_a_run_is_in_the_reference(reader):
    reader.project.train("trainer.epochs=1", "model=linear")
    reader.project.daypoint("package", "today")
    reader.project.train("-m", "trainer.epochs=1", "model=linear", "data.batch_size=512")
    told = (DOCS / "reference" / "files.md").read_text(encoding="utf-8")
    outputs = reader.project.outputs
    for path in outputs.rglob("*"):
        parts = path.relative_to(outputs).parts
        if not path.is_file() or "mlflow_model" in parts or path.name.startswith("."):
            continue
        name = re.sub(r"\d{8}", "20260328", path.name)
        assert f"`{name}`" in told, f"{'/'.join(parts)}"


# ---------------------------------------------------------------- the table of scalars


def scalar_rows():
    """The rows of the cheat sheet: an expression, and what each column says of it."""
    text = (DOCS / "scalars.md").read_text(encoding="utf-8")
    table = re.search(r"^\| `x` .*?\n\n", text, re.M | re.S)[0].strip().splitlines()
    split = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
    columns = [cell.strip("`") for cell in split[0]]
    return columns, split[2:]


def outcome(expression, x):
    import torch

    names = {
        "x": x,
        "torch": torch,
        "daypoint": daypoint,
        "json": json,
        "math": math,
        "to_py": daypoint.to_py,
    }
    try:
        value = eval(expression, names)
    except ScalarError:
        return "refused"
    except Exception as error:
        return type(error).__name__
    return repr(value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "row", scalar_rows()[1] if (DOCS / "scalars.md").exists() else (), ids=lambda row: row[0]
)
def test_a_row_of_the_cheat_sheet_is_what_happens(row):
    import numpy
    import torch

    columns, _ = scalar_rows()
    x = eval(row[0].strip("`"), {"torch": torch, "np": numpy})
    found = [outcome(column, x) for column in columns[1:]]
    assert [cell.strip("`") for cell in row[1:]] == found


# ---------------------------------------------------------------- the reference, generated


def settings_table(schema):
    """The fields of a section with their defaults and docstrings."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(schema))).body[0]
    told = {
        node.target.id: " ".join(text.value.value.split())
        for node, text in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(node, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    section = schema.__name__.lower()
    lines = ["| key | type | default | |", "|---|---|---|---|"]
    for field in fields(schema):
        default = field.default if field.default is not MISSING else field.default_factory()
        shown = "null" if default is None else json.dumps(default)
        cells = [f"`{section}.{field.name}`", f"`{field.type}`", f"`{shown}`", told[field.name]]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def groups_table():
    """The members of every config group, with the first line of each file."""
    lines = ["| group | member | |", "|---|---|---|"]
    for path in sorted((REPOSITORY / "conf").glob("*/*.yaml")):
        first = next(
            line for line in path.read_text().splitlines() if line.startswith("# ") and "@package" not in line
        )
        lines.append(f"| `{path.parent.name}` | `{path.stem}` | {first[2:].replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def command_text(name):
    """A command's help, examples, arguments and options; not as --help lays it out, which differs between versions of typer."""
    command = COMMANDS.commands[name]
    told, _, examples = inspect.cleandoc(command.help).partition("\b\n")
    examples = "\n".join(line.strip().removeprefix("Example: ") for line in examples.strip().splitlines())
    lines = [f"{told.strip()}\n", f"```text\n{examples}\n```\n", "| | |", "|---|---|"]
    for parameter in command.params:
        if parameter.name == "help":
            continue
        if parameter.param_type_name == "argument":
            shown = (parameter.metavar or parameter.name.upper()).strip("[]")
            shown = shown + ("…" if parameter.nargs == -1 else "")
            shown = shown if parameter.required else f"[{shown}]"
        else:
            value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
            shown = ", ".join(parameter.opts) + value
        told = parameter.help + (f" ${parameter.envvar} says so too." if parameter.envvar else "")
        lines.append(f"| `{shown}` | {told.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def signature_text(name, value):
    """Signature and docstring, as Python's help has them."""
    called = value.__init__ if inspect.isclass(value) else value
    told = inspect.getdoc(value) or ""
    if isinstance(value, property):
        return f"{name}\n{textwrap.indent(told, '    ')}"
    signature = re.sub(r"'([^']*)'", r"\1", str(inspect.signature(called))) if callable(called) else ""
    if inspect.isclass(value):
        signature = ""
    first = f"{name}{signature.replace('(self, ', '(').replace('(self)', '()')}"
    first = "\n".join(textwrap.wrap(first, 110, subsequent_indent=" " * 8, break_long_words=False))
    return f"{first}\n{textwrap.indent(told, '    ')}".rstrip()


def api_text(name):
    value = getattr(daypoint, name)
    parts = [signature_text(f"daypoint.{name}", value)]
    if value is daypoint.Run:
        for inner, member in vars(value).items():
            if not inner.startswith("_"):
                member = inspect.unwrap(member) if callable(member) else member
                parts.append(signature_text(f"run.{inner}", member))
    lines = [line.rstrip() for line in "\n\n".join(parts).splitlines()]
    return "```text\n" + "\n".join(lines) + "\n```"


def errors_text():
    from daypoint.base import errors

    tree = re.search(r"    DaypointError.*?\n\n", errors.__doc__, re.S)[0]
    return f"```text\n{textwrap.dedent(tree).rstrip()}\n```"


def facts_text():
    from daypoint.reading.facts import FACTS

    return ", ".join(f"`{name}`" for name in FACTS) + "."


def wings_text():
    """The wings from top to bottom, as the contract has them, each with the first line of its docstring."""
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    lines = []
    for wing in next(contract for contract in contracts if contract["id"] == "wings")["layers"]:
        told = import_module(f"daypoint.{wing}").__doc__.split("\n")[0]
        lines += ["      |", f" {wing:<13}{told}"]
    return "\n".join(["```text", *lines[1:], "```"])


API = [name for name in daypoint.__all__ if not name.endswith("Error")]
GENERATED = {
    **{
        ("config.md", name): lambda schema=schema: settings_table(schema)
        for name, schema in config.SCHEMAS.items()
    },
    ("config.md", "groups"): groups_table,
    ("cli.md", "facts"): facts_text,
    **{("cli.md", name): lambda name=name: command_text(name) for name in COMMANDS.commands},
    **{("api.md", name): lambda name=name: api_text(name) for name in API},
    ("api.md", "errors"): errors_text,
    ("../architecture.md", "wings"): wings_text,
}


def generated_part(text, key):
    return re.search(rf"(?<=<!-- generated: {re.escape(key)} -->\n).*?(?=<!-- end -->)", text, re.S)


@pytest.mark.parametrize(("page", "key"), GENERATED, ids=lambda part: part)
def test_the_reference_says_what_the_code_says(page, key):
    found = generated_part((DOCS / "reference" / page).read_text(encoding="utf-8"), key)
    assert found is not None, f"no <!-- generated: {key} --> in {page}"
    assert found[0].strip("\n") == GENERATED[page, key](), (
        "bring it up to date with: python tests/test_docs.py"
    )


def write_reference():
    for page, key in GENERATED:
        path = DOCS / "reference" / page
        text = path.read_text(encoding="utf-8")
        found = generated_part(text, key)
        if found is None:
            raise SystemExit(f"{path.name}: no <!-- generated: {key} --> … <!-- end -->")
        path.write_text(
            text[: found.start()] + GENERATED[page, key]() + "\n" + text[found.end() :], encoding="utf-8"
        )


if __name__ == "__main__":
    write_reference()
