"""A progress bar with a small curve of the loss, for a terminal or a notebook."""

from __future__ import annotations

import sys
from typing import Any

from IPython import get_ipython
from IPython.display import HTML, display
from tqdm import tqdm
from transformers import TrainerCallback

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40


class Progress(TrainerCallback):
    """Shows step, loss and its curve while a stage trains; a notebook keeps the last state, drawn once.

    Args:
        title: Title of the bar.
        show: Whether to show it; None for in a terminal and in a notebook.
    """

    def __init__(self, title: str, show: bool | None = None):
        self.title = title
        self.notebook = get_ipython() is not None and "IPKernelApp" in get_ipython().config
        self.show = (self.notebook or sys.stderr.isatty()) if show is None else show
        self.losses: list[float] = []
        self._bar: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the bar, with the earlier curve of a resumed training; see ``TrainerCallback.on_train_begin``."""
        self.losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        if not (self.show and state.is_world_process_zero):
            return
        if self.notebook:
            self._bar = display(HTML(self._html(state)), display_id=True)
        else:
            self._bar = tqdm(desc=self.title, total=state.max_steps, initial=state.global_step, leave=False)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
        """Advance by a step; see ``TrainerCallback.on_log``."""
        if "loss" not in logs:
            return
        self.losses.append(logs["loss"])
        if self._bar is None:
            return
        if self.notebook:
            self._bar.update(HTML(self._html(state)))
        else:
            self._bar.update(state.global_step - self._bar.n)
            self._bar.set_postfix_str(f"loss {logs['loss']:.3f} {sparkline(self.losses)}")

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Close the bar; see ``TrainerCallback.on_train_end``."""
        if self._bar is not None and not self.notebook:
            self._bar.close()

    def _html(self, state: Any) -> str:
        loss = f"loss {self.losses[-1]:.3f}" if self.losses else ""
        high, low = max(self.losses, default=1), min(self.losses, default=0)
        scale = 38 / ((high - low) or 1)
        step = 300 / max(1, state.max_steps - 1)
        points = " ".join(f"{step * i:.1f},{1 + scale * (high - loss):.1f}" for i, loss in enumerate(self.losses))
        return (
            f"<div>{self.title}: step {state.global_step} of {state.max_steps} "
            f"<progress value='{state.global_step}' max='{state.max_steps}'></progress> {loss}<br>"
            f"<svg width='300' height='40' role='img' aria-label='loss by step'>"
            f"<polyline points='{points}' fill='none' stroke='#0072B2' stroke-width='1.5'/></svg></div>"
        )


def sparkline(values: list[float], width: int = _WIDTH) -> str:
    """A curve of at most ``width`` characters, from the lowest value to the highest.

    Args:
        values: At least one.
        width: In characters.

    >>> sparkline([3.0, 2.0, 1.0])
    '█▅▁'
    """
    count = max(1, -(-len(values) // width))
    means = [sum(part) / len(part) for part in (values[i : i + count] for i in range(0, len(values), count))]
    low, span = min(means), (max(means) - min(means)) or 1
    return "".join(_BARS[round((len(_BARS) - 1) * (value - low) / span)] for value in means)
