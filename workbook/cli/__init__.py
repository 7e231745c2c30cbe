"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys

from ..errors import WorkbookError
from . import models, notebooks  # whose commands are the application's
from .application import app

__all__ = ["app", "main", "models", "notebooks"]


def main() -> None:
    """Run the command line; an error that the user can fix prints as one message.

    Raises:
        SystemExit: With 2 after such an error, otherwise with the command's exit code.
    """
    try:
        app()
    except WorkbookError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
