"""Git repositories of a test."""

from __future__ import annotations

import os
import subprocess


def git(root, *arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    done = subprocess.run(
        ["git", "-C", root, *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    return done.stdout.strip()
