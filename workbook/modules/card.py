"""The card of a saved model: how it was made, what it scored, and lines that run it."""

from __future__ import annotations

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


@dataclass
class Card(SentenceTransformerModelCardData):
    """What a saved model's ``README.md`` says, in place of sentence-transformers' own card.

    Attributes:
        method: Name of the method, or a description of what was built.
        backbone: Name of the backbone, as it was given; of a folder the last part.
        adapters: Names of the adapters that were merged into it; of folders the last part but ``decoder``.
        stages: What was trained, in order; see :meth:`add_training`.
        compression: How it was compressed, step by step.
        scores: Rows of what was measured; see :meth:`add_scores`.
    """

    method: str = ""
    backbone: str = ""
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
                already is replaced.

        Raises:
            InvalidValueError: A frame without its columns.
        """
        if missing := [column for column in _SCORES if column not in getattr(scores, "columns", ())]:
            raise InvalidValueError("scores", "a frame as evaluate gave it", f"one without {', '.join(missing)}")
        rows = scores[[*_SCORES]].to_dict("records")
        again = {(row["suite"], row["task"]) for row in rows}
        self.scores = [row for row in self.scores if (row["suite"], row["task"]) not in again] + rows

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
            "scores": self.scores,
            "source": self.model_id or ".",
            "versions": self.version,
        }


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
    listed = ("adapters", "stages", "compression")
    several = {name: [one for card in cards for one in getattr(card, name)] for name in listed}
    return {"backbone": cards[0].backbone if cards else "", **several}


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
