"""The base of the explorers: a table, or in its place widgets with an answer below them."""

from __future__ import annotations

import base64
import html
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import ipywidgets as widgets
import pandas as pd
from matplotlib.figure import Figure

from ..errors import InvalidValueError, WorkbookError
from ..figures import png

WIDE = widgets.Layout(width="40em")


class Panel(ABC):
    """A table, or a panel of widgets in its place where a person can use them."""

    @abstractmethod
    def table(self, *texts: str) -> pd.DataFrame:
        """The findings on the texts."""

    @abstractmethod
    def panel(self, *texts: str) -> widgets.VBox:
        """Widgets for the same findings on texts that are typed and chosen."""

    def show(self, *texts: str) -> widgets.Widget | pd.DataFrame:
        """The widgets if a person can use them, otherwise the table.

        Args:
            *texts: The texts at the start.

        Returns:
            Widgets in JupyterLab and VS Code; a frame in papermill, nbclient and nbval, where nobody could type.
        """
        return self.panel(*texts) if _someone_looks_on() else self.table(*texts)


class TextExplorer(Panel):
    """An explorer of a single text."""

    def panel(self, text: str) -> widgets.VBox:
        """A text field, and the table of the typed text."""
        return answered({"text": text_field(text, "Text")}, lambda text: as_html(self.table(text)))


def answered(controls: dict[str, widgets.Widget], answer: Callable[..., str]) -> widgets.VBox:
    """The controls, and below them the answer to their values, or what is wrong with them.

    While the answer is computed, the earlier one is grey, and the controls wait.

    Args:
        controls: Widgets by name.
        answer: Function of their values, by these names, that returns HTML.
    """
    line = widgets.HTML()

    def update(_: object = None) -> None:
        line.value = f'<i>computing ...</i><div style="opacity: 0.4">{line.value}</div>'
        _disable(controls.values(), True)
        said = ""  # for an error that is not the user's, which Jupyter's log shows
        try:
            said = answer(**{name: control.value for name, control in controls.items()})
        except WorkbookError as error:
            said = html.escape(str(error))
        finally:
            line.value = said
            _disable(controls.values(), False)

    for control in controls.values():
        control.observe(update, "value")
    update()
    return widgets.VBox([*controls.values(), line])


def _disable(controls: Iterable[widgets.Widget], disabled: bool) -> None:
    for control in controls:
        control.disabled = disabled


def text_field(text: str, name: str, **picks: list[str]) -> widgets.Text:
    """A text field; with ``options``, one with texts to pick from.

    Args:
        text: The text at the start.
        name: Label.
        **picks: ``options``: texts to pick from.

    Raises:
        InvalidValueError: A text that is not a string.
    """
    if not isinstance(text, str):
        raise InvalidValueError(name.lower(), "a string", text)
    kind = widgets.Combobox if picks else widgets.Text
    return kind(value=text, description=name, layout=WIDE, continuous_update=False, **picks)


def refuse_blank(text: str) -> None:
    """Refuse a blank text.

    Raises:
        InvalidValueError: A text that is blank or not a string.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidValueError("text", "a string that is not blank", text)


def as_html(frame: pd.DataFrame, *, index: bool = False) -> str:
    """A table as HTML, in JupyterLab's style, with every text in full.

    Args:
        frame: Any table.
        index: Whether to show the names of the rows.
    """
    with pd.option_context("display.max_colwidth", None):
        table = frame.to_html(index=index, border=0)
    return f'<div class="jp-RenderedHTMLCommon" style="text-align: right">{table}</div>'


def picture(fig: Figure, what: str, *, small: bool = True) -> str:
    """A figure as HTML.

    Args:
        fig: The figure.
        what: What it shows, for those who can't see it.
        small: See `workbook.figures.png`.
    """
    image, size = png(fig, small=small)
    data = base64.b64encode(image).decode()
    return f'<img alt="{what}" width="{size["width"]}" src="data:image/png;base64,{data}">'


def _someone_looks_on() -> bool:
    """True if Jupyter's server named its session, or VS Code its process, to this kernel; batch runners do neither."""
    return any(name in os.environ for name in ("JPY_SESSION_NAME", "VSCODE_PID"))
