"""Two embedders as one, with their vectors concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import InputModule
from torch.nn.functional import normalize
from transformers import PreTrainedTokenizerBase

from ..errors import InvalidValueError, whole
from ..files import writing
from .loading import load_embedder
from .saving import hub_options

_PARTS = ("first", "second")
_PASSED_ON = ("trust_remote_code", "model_kwargs", "processor_kwargs", "config_kwargs", "backend")


class Hybrid(InputModule):
    """The vectors of two embedders, each scaled to length 1, concatenated.

    The cosine of two hybrid vectors is the weighted mean of the two cosines, (first + weight * second) / (1 + weight).
    Each embedder lays the texts out by its own template. They may share a decoder; it is saved with each of them and
    loaded twice.

    Args:
        first: An embedder, such as a lexicon one.
        second: Another, such as a dense one.
        weight: Weight of the second's cosine relative to the first's; 1 is the plain concatenation of the paper.

    Raises:
        InvalidValueError: A weight that is not a positive number, something that is not an embedder, or two embedders
            on different devices.

    Source: LENS, section 5.3 and table 6.
    """

    config_keys = ("weight",)

    def __init__(self, first: SentenceTransformer, second: SentenceTransformer, weight: float = 1.0):
        super().__init__()
        for model in (first, second):
            if not isinstance(model, SentenceTransformer):
                raise InvalidValueError("hybrid", "two SentenceTransformers", type(model).__name__)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            raise InvalidValueError("weight", "a positive number", weight)
        if first.device != second.device:
            raise InvalidValueError("hybrid", "two embedders on one device", f"{first.device} and {second.device}")
        self.first, self.second = first, second
        self.weight = float(weight)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the first embedder."""
        return self.first.tokenizer

    @property
    def max_seq_length(self) -> int | None:
        """The longest input that both read whole, in tokens, or None if neither has a limit; setting it sets both.

        Raises:
            InvalidValueError: Not a positive whole number.
        """
        lengths = [model.max_seq_length for model in (self.first, self.second) if model.max_seq_length is not None]
        return min(lengths, default=None)

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self.first.max_seq_length = self.second.max_seq_length = whole("max_seq_length", value, of="tokens")

    def get_embedding_dimension(self) -> int:
        """Sum of both widths."""
        return sum(model.get_embedding_dimension() for model in (self.first, self.second))

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """The features of both embedders, prefixed with ``first.`` or ``second.``; see :meth:`.Decoder.preprocess`."""
        made = {part: getattr(self, part).preprocess(inputs, prompt, **kwargs) for part in _PARTS}
        return {f"{part}.{name}": value for part, features in made.items() for name, value in features.items()}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``sentence_embedding``, float32 (batch, both widths), of length sqrt(1 + weight).

        See ``Module.forward``.
        """
        vectors = []
        for part in _PARTS:
            own = {name.removeprefix(f"{part}."): v for name, v in features.items() if name.startswith(f"{part}.")}
            vectors.append(normalize(getattr(self, part)(own)["sentence_embedding"].float(), dim=1))
        features["sentence_embedding"] = torch.cat([vectors[0], self.weight**0.5 * vectors[1]], dim=1)
        return features

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write both embedders, each into a folder of its own; see ``Module.save``.

        Raises:
            OutputError: The folder can't be written.
        """
        with writing(Path(output_path)):
            self.save_config(output_path)
            for part in _PARTS:
                getattr(self, part).save_pretrained(str(Path(output_path, part)), create_model_card=False)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Self:
        """Load from a folder or the hub; see ``Module.load``.

        Args:
            model_name_or_path: The folder of a model, or its name on the hub.
            subfolder: The module's folder in it.
            **kwargs: Options of ``SentenceTransformer``, such as ``trust_remote_code`` and ``model_kwargs``, which both
                embedders get, and of fetching files from the hub.

        Raises:
            DamagedFileError, InvalidValueError, UnknownNameError: As :func:`~.loading.load_embedder`.
        """
        hub = hub_options(kwargs)
        folder = Path(cls.load_dir_path(model_name_or_path, subfolder=subfolder, **hub))
        options = {name: kwargs[name] for name in _PASSED_ON if name in kwargs}
        models = [load_embedder(folder / part, device="cpu", **options) for part in _PARTS]
        return cls(*models, **cls.load_config(model_name_or_path, subfolder=subfolder, **hub))
