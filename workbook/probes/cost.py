"""What it costs to embed: tokens read, and seconds taken, of models that take turns."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from ..errors import InvalidValueError
from .states import decoder_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def encoding_cost(models: Mapping[str, SentenceTransformer], texts: Sequence[str], turns: int = 5) -> pd.DataFrame:
    """Encode the same texts with several models in turn, so that a slow moment of the machine meets all of them.

    Args:
        models: Embedders by name.
        texts: Strings.
        turns: Timed rounds; one more goes before them, to warm up.

    Returns:
        One row per turn (from 0) and model: ``turn``, ``model``, ``tokens`` (read for all texts, without padding),
        ``seconds``.

    Raises:
        InvalidValueError: No texts, no positive number of turns, or a model that does not begin with a Decoder.

    Source: LLM2Vec, appendix E.2 and table 6, which gives hours.
    """
    if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:
        raise InvalidValueError("turns", "a whole number from 1", turns)
    read = {name: decoder_of(model, texts).encode_texts(texts) for name, model in models.items()}
    tokens = {name: sum(len(text.input_ids) for text in encoded) for name, encoded in read.items()}
    rows = []
    for turn in range(-1, turns):
        for name, model in models.items():
            began = time.perf_counter()
            model.encode(list(texts), show_progress_bar=False)
            rows.append((turn, name, tokens[name], time.perf_counter() - began))
    frame = pd.DataFrame(rows, columns=["turn", "model", "tokens", "seconds"])
    return frame[frame["turn"] >= 0].reset_index(drop=True)
