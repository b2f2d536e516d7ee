"""A sweep that goes on: `-m sweep.resume=ADDRESS` becomes the command line that the sweep had.

It knows texts and the manifest, not Hydra. What is done already is left out job by job, in `daypoint.hydra.sweep`.
"""

from __future__ import annotations

from pathlib import Path

from daypoint.base.errors import ConfigError
from daypoint.record import sweep


def expand_resume(arguments: list[str], outputs: Path) -> list[str]:
    """The command line of a sweep that goes on: `-m sweep.resume=ADDRESS` with the overrides that the sweep had. Idempotent,
    since the processes of DataLoader workers may inherit what is returned here.

    Raises:
        AddressError: it names no sweep.
        ConfigError: there are other overrides too, or the sweep's hold a secret that was hidden.
    """
    given = [text for text in arguments if text.startswith("sweep.resume=")]
    if (
        not given
        or not {"-m", "--multirun"} & set(arguments)
        or given[-1] in ("sweep.resume=null", "sweep.resume=")
    ):
        return arguments
    mine = ("sweep.", "hydra", "-", "+hydra", "tracking.outputs=")
    others = [text for text in arguments if "=" in text and not text.startswith(mine)]
    for text in arguments:
        if text.startswith("tracking.outputs="):
            outputs = (outputs.parent / Path(text.partition("=")[2]).expanduser()).absolute()
    directory = sweep.find(given[-1].partition("=")[2].strip("'\""), outputs)
    manifest = sweep.read(directory)
    if others and others == [
        text for text in manifest["overrides"] if "=" in text and not text.startswith(mine)
    ]:
        return arguments
    if others:
        raise ConfigError(
            f"sweep.resume: expected no other overrides, found {' '.join(others)}; the sweep is run as it was, "
            "start a new one to change it"
        )
    names = {text.partition("=")[0] for text in arguments}
    hydras = [text for text in manifest.get("hydra_overrides", ()) if text.partition("=")[0] not in names]
    recorded = [*hydras, *manifest["overrides"]]
    if hidden := [text for text in recorded if "***" in text]:
        raise ConfigError(
            f"sweep.resume: {' '.join(hidden)}: a secret, which no file holds; put it into the environment and into the config "
            "as ${oc.env:NAME}, and start a new sweep"
        )
    kept = [text for text in arguments if not text.startswith(("sweep.resume=", "tracking.outputs="))]
    return [*kept, *recorded, f"sweep.resume='{directory}'"]
