"""Training: recipes as data, and one engine for all stages, which resumes them and caches them by content."""

from .recipe import Adapter, Evaluator, Recipe, Stage

__all__ = ["Adapter", "Evaluator", "Recipe", "Stage", "Trained", "export_adapters", "rehearse", "train", "train_into"]


def __getattr__(name: str) -> object:
    # The engine imports torch and the trainer, which takes seconds; a recipe is only data and needs neither.
    if name in ("Trained", "train"):
        from . import run

        return getattr(run, name)
    if name == "train_into":
        from .folder import train_into

        return train_into
    if name == "export_adapters":
        from .adapters import export_adapters

        return export_adapters
    if name == "rehearse":
        from .rehearsal import rehearse

        return rehearse
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
