"""The command line, called in this process."""

import pytest

from daypoint.cli import app as cli


def run_cli(capsys, *arguments):
    """(exit code, stdout, stderr) of `daypoint …`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["daypoint", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as exit_:
            code = exit_.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err
