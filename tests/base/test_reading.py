"""Files are opened for reading in one place, `daypoint.base.files`, which takes regular files only."""

import ast
from pathlib import Path

import daypoint

SOURCE = Path(daypoint.__file__).parent
ELSEWHERE = {
    (
        "models/served/code_model.py",
        "open",
    ): "runs where a model is served, without daypoint; MLflow has put the files there",
    ("models/served/code_model.py", "read_text"): "the same",
    ("plots/curves_page.py", "read_text"): "a file of this package",
    ("record/sweep.py", "read_text"): "of /proc, whose files have no size",
    ("tracking/store.py", "open"): "a file that was made here",
    ("tracking/shipment.py", "os.open"): "takes a lock and reads nothing",
    ("record/journal.py", "os.open"): "makes a new file",
    ("base/files.py", "os.open"): "the one place",
}
READS = {"read_bytes", "read_text"}


def opened(tree):
    """What a module opens for reading: the names of the calls."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        if name == "os.open":
            yield name
        elif name == "open":
            mode = ast.unparse(node.args[1]) if len(node.args) > 1 else "'r'"
            if not set(mode) & set("wxa"):
                yield name
        elif last in READS and not name.startswith(("files.", "disk.")) and name != last:
            yield last


def test_only_one_module_opens_files_for_reading():
    found = set()
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE).as_posix()
        if not place.startswith("zoo/"):  # it knows nothing of daypoint, and reads what the user names
            found |= {(place, name) for name in opened(ast.parse(path.read_text()))}
    assert found == set(ELSEWHERE)
