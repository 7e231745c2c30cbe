"""What embedding a collection takes, as sliders: from tokens to operations, hours and money."""

from __future__ import annotations

from collections.abc import Mapping

import ipywidgets as widgets
import pandas as pd

from ..errors import InvalidValueError, UnknownNameError
from ..probes import SIZES, Size, estimate
from .panel import Panel, answered, as_html

_TEXTS = tuple(10**power for power in range(3, 10))


class CostCalculator(Panel):
    """Hours and money to embed a collection, by method, model, device and price.

    Args:
        read: Tokens that the decoder reads of a text, by name of a method, such as from
            `workbook.probes.encoding_cost`.
        front: Of these, tokens in front that texts share, by name of a method; they can be kept. Methods without an
            entry keep nothing.
        sizes: Models by name.

    Raises:
        InvalidValueError: No method, or one that shares more than it reads.
        UnknownNameError: A front of another method.
    """

    def __init__(
        self,
        read: Mapping[str, float],
        front: Mapping[str, float] | None = None,
        sizes: Mapping[str, Size] = SIZES,
    ):
        self.read, self.front, self.sizes = dict(read), dict(front or {}), dict(sizes)
        if not self.read:
            raise InvalidValueError("read", "at least one method", self.read)
        for method, shared in self.front.items():
            if method not in self.read:
                raise UnknownNameError("method", method, self.read)
            if not 0 <= shared <= self.read[method]:
                raise InvalidValueError(f"front of {method}", f"from 0 to {self.read[method]} tokens", shared)

    def compare(
        self, model: str, texts: float, peak: float, utilisation: float, price: float, *, more: float = 0
    ) -> pd.DataFrame:
        """Every method, with and without its beginning kept.

        Args:
            model: A name from ``sizes``.
            texts: Texts of the collection.
            peak: Operations a second of the device at most, in 10^12.
            utilisation: Share of the peak that is reached, above 0, at most 1.
            price: Money an hour of the device.
            more: Tokens that every text is longer than those that were counted.

        Returns:
            One row per method, in the order given: ``method``, ``tokens`` (of a text), ``hours`` and ``money``; and
            ``hours kept`` and ``money kept``, with what stands in front read once, the same where nothing is kept.

        Raises:
            UnknownNameError: No such model.
            InvalidValueError: As `workbook.probes.estimate`.
        """
        if model not in self.sizes:
            raise UnknownNameError("model", model, self.sizes)
        device = {"peak": peak * 1e12, "utilisation": utilisation, "price": price}
        rows = []
        for method, tokens in self.read.items():
            whole, shared = tokens + more, self.front.get(method, 0)
            bills = [estimate(self.sizes[model], whole - kept, texts, front=kept, **device) for kept in (0, shared)]
            numbers = [number for bill in bills for number in (bill.seconds / 3600, bill.money)]
            rows.append((method, whole, *numbers))
        columns = ["method", "tokens", "hours", "money", "hours kept", "money kept"]
        return pd.DataFrame(rows, columns=columns)

    def table(self) -> pd.DataFrame:
        """A million texts by the largest of the models, on a device of 10^14 operations a second that is half used.

        An hour of the device costs 2, as where the sliders begin.
        """
        largest = max(self.sizes, key=lambda name: self.sizes[name].weights)
        return self.compare(largest, 1e6, 100, 0.5, 2.0).round(2)

    def panel(self) -> widgets.VBox:
        """A choice of model, sliders, and the table."""
        controls = {
            "model": widgets.Dropdown(options=[*self.sizes], value=[*self.sizes][-1], description="Model"),
            "texts": widgets.SelectionSlider(options=_TEXTS, value=10**6, description="Texts"),
            "more": widgets.IntSlider(value=0, min=0, max=2000, step=10, description="Longer by",
                                      continuous_update=False),
            "peak": widgets.FloatLogSlider(value=100, min=-1, max=3, description="10¹² ops/s", continuous_update=False),
            "utilisation": widgets.FloatSlider(value=0.5, min=0.01, max=1, step=0.01, description="Utilisation",
                                               continuous_update=False),
            "price": widgets.FloatSlider(value=2, min=0, max=20, step=0.1, description="Price an hour",
                                         continuous_update=False),
        }  # fmt: skip
        return answered(controls, lambda **chosen: as_html(self.compare(**chosen).round(2)))
