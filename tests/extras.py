"""Packages that only some installations have."""

import os

import pytest


def absent(what, left_out):
    """Skip where nobody promised it; fail where the checks have to run.

    Args:
        what: Name of what is not installed.
        left_out: What was not checked.
    """
    message = f"{left_out}: {what} is not installed"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
