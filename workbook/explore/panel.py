"""What the explorers share: a table, or in its place widgets with an answer below them."""

from __future__ import annotations

import html
import os
from abc import ABC, abstractmethod
from collections.abc import Callable

import ipywidgets as widgets
import pandas as pd

from ..errors import InvalidValueError, WorkbookError

WIDE = widgets.Layout(width="40em")


class Panel(ABC):
    """A table, and a panel in its place where a person looks on."""

    @abstractmethod
    def table(self, *texts: str) -> pd.DataFrame:
        """What there is to say of the texts."""

    @abstractmethod
    def panel(self, *texts: str) -> widgets.VBox:
        """The same, to be typed and chosen."""

    def show(self, *texts: str) -> widgets.Widget | pd.DataFrame:
        """Something to play with where a person looks on, else the table.

        Args:
            *texts: What to begin with.

        Returns:
            Widgets in JupyterLab and VS Code; a frame in papermill, nbclient and nbval, where nobody could type.
        """
        return self.panel(*texts) if _someone_looks_on() else self.table(*texts)


class TextExplorer(Panel):
    """An explorer of a single text."""

    def panel(self, text: str) -> widgets.VBox:
        """A text field and the table of what is typed."""
        return answered({"text": text_field(text, "Text")}, lambda text: as_html(self.table(text)))


def answered(controls: dict[str, widgets.Widget], answer: Callable[..., str]) -> widgets.VBox:
    """The controls, and below them the answer (HTML) to their values by name, or what is wrong with them.

    Args:
        controls: Widgets by name.
        answer: From their values, by these names, to HTML.
    """
    line = widgets.HTML()

    def update(_: object = None) -> None:
        try:
            line.value = answer(**{name: control.value for name, control in controls.items()})
        except WorkbookError as error:
            line.value = html.escape(str(error))

    for control in controls.values():
        control.observe(update, "value")
    update()
    return widgets.VBox([*controls.values(), line])


def text_field(text: str, name: str, **picks: list[str]) -> widgets.Text:
    """A field to type into; with ``options``, texts to pick from as well.

    Args:
        text: What it begins with.
        name: Label.
        **picks: ``options``: texts to pick from.
    """
    if not isinstance(text, str):
        raise InvalidValueError(name.lower(), "a string", text)
    kind = widgets.Combobox if picks else widgets.Text
    return kind(value=text, description=name, layout=WIDE, continuous_update=False, **picks)


def refuse_blank(text: str) -> None:
    """A text has to say something."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidValueError("text", "a string that is not blank", text)


def as_html(frame: pd.DataFrame, *, index: bool = False) -> str:
    """A table with every text whole.

    Args:
        frame: Any table.
        index: Whether to show the names of the rows.
    """
    with pd.option_context("display.max_colwidth", None):
        return frame.to_html(index=index)


def _someone_looks_on() -> bool:
    """Jupyter's server names the session, VS Code its process, to the kernels they start; batch runners do neither."""
    return any(name in os.environ for name in ("JPY_SESSION_NAME", "VSCODE_PID"))
