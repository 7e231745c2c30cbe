"""The application, the options before a command, and what commands share."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from .. import __version__
from ..errors import InvalidValueError
from ..scale import SCALES

app = typer.Typer(
    name="workbook",
    help="Five ways to turn a decoder-only LLM into a text embedder: learn them, train them, take them apart.",
    epilog="Exit codes: 0 all went well; 1 a notebook failed, or can't run here; 2 a wrong argument, file or folder; "
    "130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

LOG = logging.getLogger("workbook")
"""What the library says of its decisions; its level is how much the command line tells."""

ScaleOption = Annotated[str, typer.Option("--scale", "-s", help=f"How much of everything: {', '.join(SCALES)}.")]


def _print_version(asked: bool) -> None:
    if asked:
        print(f"workbook {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Say on stderr what train and evaluate decide: device, dtype, attention, caches."
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print results, warnings and errors alone: no bars.")
    ] = False,
) -> None:
    """Take the options that come before a command."""
    if verbose and quiet:
        raise InvalidValueError("--quiet", "--quiet or --verbose", "both")
    LOG.setLevel(logging.INFO if verbose else logging.ERROR if quiet else logging.WARNING)
    LOG.handlers = [logging.StreamHandler()] if verbose else []


def bars_wanted() -> bool | None:
    """Whether to show bars, as the library takes it: not if the command is quiet, else where there is a terminal."""
    return None if LOG.isEnabledFor(logging.WARNING) else False


def say(what: str) -> None:
    """Say what was done beside a bar, or in a log, where it is seen at once; not if the command is quiet."""
    from tqdm import tqdm

    if bars_wanted() is False:
        return
    tqdm.write(what)
    sys.stdout.flush()
