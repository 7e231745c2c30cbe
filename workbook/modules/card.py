"""The card of a saved model: how it was made, what it scored, and lines that run it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentence_transformers.sentence_transformer.model_card import SentenceTransformerModelCardData

from ..backbones import CARRIED, shown
from ..errors import InvalidValueError
from .decoder import Decoder

if TYPE_CHECKING:
    import pandas as pd
    from sentence_transformers import SentenceTransformer

_SCORES = ("suite", "task", "metric", "score", "low", "high")
_UNMEASURED = "Not measured."
_COLUMNS = "| suite | task | scale | metric | score | interval |"
_HEAD = f"""In points, with 95% intervals over items (bootstrap), through mteb. The scale sizes the offline tasks.

{_COLUMNS}
|---|---|---|---|---|---|"""
_OWN = re.compile(rf"(?<=^## Scores\n\n){re.escape(_UNMEASURED)}$|^{re.escape(_COLUMNS)}\n.+(\n\|.*)*", re.MULTILINE)
"""What of a card is ours to change when there are scores."""


@dataclass
class Card(SentenceTransformerModelCardData):
    """What a saved model's ``README.md`` says, in place of sentence-transformers' own card.

    Attributes:
        method: Name of the method, or a description of what was built.
        backbone: Name of the backbone, as it was given; of a folder the last part.
        published: Whether the backbone is a published checkpoint of an embedder, pooling included.
        adapters: Names of the adapters that were merged into it; of folders the last part but ``decoder``.
        stages: What was trained, in order; see :meth:`add_training`.
        compression: How it was compressed, step by step.
        scores: Rows of what was measured; see :meth:`add_scores`.
    """

    method: str = ""
    backbone: str = ""
    published: bool = False
    adapters: list[str] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)
    compression: list[str] = field(default_factory=list)
    scores: list[dict[str, Any]] = field(default_factory=list)
    template_path: Path = field(default=Path(__file__).parent / "card.md.jinja", init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.backbone = shown(self.backbone)
        if carried := CARRIED.get(self.backbone):
            self.base_model, self.license = carried.hub, self.license or carried.license
        elif "/" in self.backbone:
            self.base_model = self.backbone
        self.adapters = [
            Path(one.removesuffix("/decoder")).name if one.count("/") != 1 else one for one in self.adapters
        ]

    def add_training(self, manifest: Mapping[str, Any]) -> None:
        """Note a training behind those before; what was measured before it no longer holds.

        Args:
            manifest: As of :class:`workbook.training.run.Trained`.
        """
        self.scores = []
        for name, record in manifest["stages"].items():
            stage = {key: record[key] for key in ("tokens", "seconds", "device", "seed")}
            self.stages.append(record["stage"] | stage | {"name": name, "source": Path(record["source"]).name})

    def add_scores(self, scores: pd.DataFrame) -> None:
        """Note scores, which the card then shows with their intervals.

        Args:
            scores: A frame from ``workbook.evaluation.evaluate`` or ``average``, in points. A task that is there
                already at this scale is replaced.

        Raises:
            InvalidValueError: A frame without its columns.
        """
        rows = _rows(scores)
        again = {_place(row) for row in rows}
        self.scores = [row for row in self.scores if _place(row) not in again] + rows

    def to_dict(self) -> dict[str, Any]:
        """What the template shows, as plain data."""
        first = next(iter(self.model), None)
        layout = first.template if isinstance(first, Decoder) else None
        return {
            "license": self.license,
            "library_name": self.library_name,
            "tags": self.tags,
            "pipeline_tag": self.pipeline_tag,
            "base_model": self.base_model,
            "method": self.method,
            "backbone": self.backbone,
            "published": self.published,
            "adapters": self.adapters,
            "width": self.model.get_embedding_dimension(),
            "max_length": self.model.max_seq_length,
            "attention": first.attention if layout else None,
            "layout": {name: "".join(piece[0] for piece in layout[name]) for name in ("instructed", "plain")}
            if layout
            else None,
            "prompts": {name: prompt for name, prompt in self.model.prompts.items() if prompt},
            "stages": self.stages,
            "compression": self.compression,
            "scores": "\n".join([_HEAD, *map(_line, self.scores)]) if self.scores else _UNMEASURED,
            "source": self.model_id or ".",
            "versions": self.version,
        }


def with_scores(text: str, scores: pd.DataFrame) -> str:
    """The text of a card with scores in its table; the rest stays as it is, also what its reader wrote.

    Args:
        text: The text of a saved card. Without the table, or its section, it gets one.
        scores: As of :meth:`Card.add_scores`.

    Raises:
        InvalidValueError: A frame without its columns.
    """
    rows = {_place(row): _line(row) for row in _rows(scores)}
    if _OWN.search(text) is None:
        text = f"{text.rstrip()}\n\n## Scores\n\n{_UNMEASURED}\n"
    text = _OWN.sub(lambda found: _HEAD if found[0] == _UNMEASURED else found[0], text, count=1)
    table = _OWN.search(text)
    head, rule, *before = table[0].split("\n")
    rows = {tuple(line[2:].split(" | ")[:3]): line for line in before} | rows
    return text[: table.start()] + "\n".join([head, rule, *rows.values()]) + text[table.end() :]


def _rows(scores: pd.DataFrame) -> list[dict[str, Any]]:
    if missing := [column for column in _SCORES if column not in getattr(scores, "columns", ())]:
        raise InvalidValueError("scores", "a frame as evaluate gave it", f"one without {', '.join(missing)}")
    return [row | {"scale": scores.attrs.get("scale", "")} for row in scores[[*_SCORES]].to_dict("records")]


def _place(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["suite"], row["task"], row["scale"]


def _line(row: Mapping[str, Any]) -> str:
    interval = f"{row['low']:.1f} to {row['high']:.1f}" if row["low"] == row["low"] else "not known"
    return "| " + " | ".join([*_place(row), row["metric"], f"{row['score']:.1f}", interval]) + " |"


def card_of(model: SentenceTransformer) -> Card:
    """The card of a model; one that was loaded, or built elsewhere, gets a new one, which says so.

    Args:
        model: Any SentenceTransformer.
    """
    if not isinstance(model.model_card_data, Card):
        give_card(model, "a model that was saved before")
    return model.model_card_data


def made_of(*models: SentenceTransformer) -> dict[str, Any]:
    """The fields of a card that a model takes over from those it is made of.

    Args:
        *models: Models, whose own cards stay as they are; of the first the backbone.
    """
    cards = [card for model in models if isinstance(card := model.model_card_data, Card)]
    lists = ("adapters", "stages", "compression")
    several = {name: [one for card in cards for one in getattr(card, name)] for name in lists}
    first = {name: getattr(cards[0], name) for name in ("backbone", "published")} if cards else {}
    return {"backbone": "", **first, **several}


def give_card(model: SentenceTransformer, method: str, **fields: Any) -> None:
    """Give a model a card of its own.

    Args:
        model: Any SentenceTransformer.
        method: See :class:`Card`.
        **fields: Other fields of the card, such as ``backbone``.
    """
    model.model_card_data = Card(method=method, **fields)
    model.model_card_data.register_model(model)
    model._model_card_text = None  # else sentence-transformers would save the text that was loaded
