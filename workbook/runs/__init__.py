"""Runs of the notebooks: one notebook's own run, running many of them, their results, and the report."""

__all__ = ["Words", "start"]


def __getattr__(name: str) -> object:
    # A notebook's run imports torch and matplotlib, which takes seconds; the runner and the report need neither.
    if name in __all__:
        from . import notebook

        return getattr(notebook, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
