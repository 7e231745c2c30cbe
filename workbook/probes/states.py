"""Measurements of what a decoder's attention and a pooling do to its states and to an embedding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sentence_transformers.util import batch_to_device

from ..attention import MODES, switched
from ..errors import InvalidValueError, UnknownNameError, whole
from ..modules import Decoder
from ..templates import CONTEXT

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TIE = 5e-4
"""Two cosines closer than this are a tie: in bfloat16, rounding alone moves the cosines of equal states by 3e-4."""


@torch.no_grad()
def layer_cosine(model: SentenceTransformer, texts: Sequence[str]) -> pd.DataFrame:
    """Cosine between the states that causal and bidirectional attention give the same token, in every layer.

    Args:
        model: An embedder; it runs in both attention modes, whichever is its own.
        texts: Strings, one forward pass in each mode.

    Returns:
        One row per text, layer and token: ``text`` (its index), ``layer`` (0 is the input embedding, the last is the
        output of the final norm), ``position`` (from 0), ``token`` (its string, or ``{context}`` for a contextual one),
        ``cosine`` (-1 to 1), and ``control``: the cosine with the bidirectional state of the next token in the text (of
        the first for the last), which any two states of a layer have in common.

    Raises:
        InvalidValueError: No texts, or a model that does not begin with a Decoder.

    Source: LLM2Vec, section 4.2 and figures 5, 8 and 9.
    """
    module = decoder_of(model, texts)
    rows = []
    for index, text in enumerate(texts):
        features = features_of(model, [text], None)
        states = {}
        for mode in MODES:
            with reading(module, mode), all_layers(module) as passes:
                module(dict(features))
            states[mode] = torch.stack(passes.pop().hidden_states).squeeze(1).float()  # (layers, tokens, dim)
        causal, both = (states[mode] for mode in MODES)
        cosine = F.cosine_similarity(causal, both, dim=-1).cpu().numpy()
        control = F.cosine_similarity(causal, both.roll(-1, dims=1), dim=-1).cpu().numpy()
        tokens = _strings(module, features["input_ids"][0])
        layers, positions = np.indices(cosine.shape)
        rows.append(
            pd.DataFrame(
                {
                    "text": index,
                    "layer": layers.ravel(),
                    "position": positions.ravel(),
                    "token": tokens * len(cosine),
                    "cosine": cosine.ravel(),
                    "control": control.ravel(),
                }
            )
        )
    return pd.concat(rows, ignore_index=True)


def layer_means(cosines: pd.DataFrame) -> pd.DataFrame:
    """Mean cosines of the tokens that can differ: those after position 0, in the layers above the input embedding.

    Position 0 is out because it measures something else. Under the causal mask its state is that of one token alone,
    where decoders park attention (a *sink*); without the mask it becomes a token like any other, and turns much
    further than the rest, whatever the text. Layer 0 is out since no attention has acted there: its cosine is 1.

    Args:
        cosines: From :func:`layer_cosine`.

    Returns:
        One row per text and layer (from 1): ``text``, ``layer``, and the means of ``cosine`` and ``control`` over the
        text's tokens.

    Raises:
        UnknownNameError: A column is absent.

    Source: the cosines are LLM2Vec's (section 4.2); which of them count is this project's choice.
    """
    for column in ("text", "layer", "position", "cosine", "control"):
        if column not in cosines:
            raise UnknownNameError("column", column, map(str, cosines))
    counted = cosines[(cosines["position"] > 0) & (cosines["layer"] > 0)]
    return counted.groupby(["text", "layer"], as_index=False)[["cosine", "control"]].mean()


@torch.no_grad()
def prefix_movement(model: SentenceTransformer, first: str, second: str) -> pd.DataFrame:
    """How far the states of the tokens that two texts begin with move when what follows is exchanged.

    Under causal attention they move by nothing, unless a contextual token in front of them tells what follows.

    Args:
        model: An embedder; it runs in both attention modes, whichever is its own.
        first: A text.
        second: Another that begins like it, read by the same template.

    Returns:
        One row per token that both begin with: ``position`` (from 0), ``token`` (as :func:`layer_cosine` names it), and
        by attention mode, ``causal`` and ``bidirectional``, the distance of its two last states by the length of the
        first (0 for none).

    Raises:
        InvalidValueError: A model that does not begin with a Decoder.
    """
    module = decoder_of(model, [first, second])
    sides = [features_of(model, [text], None) for text in (first, second)]
    rows = [side["input_ids"][0] for side in sides]
    both = zip(*(row.tolist() for row in rows), strict=False)
    shared = next((n for n, (one, other) in enumerate(both) if one != other), min(map(len, rows)))
    moved = {}
    for mode in MODES:
        with reading(module, mode):
            one, other = (module(dict(side))["token_embeddings"][0, :shared].float() for side in sides)
        moved[mode] = ((one - other).norm(dim=1) / one.norm(dim=1)).tolist()
    return pd.DataFrame({"position": range(shared), "token": _strings(module, rows[0][:shared]), **moved})


@torch.no_grad()
def prefix_test(model: SentenceTransformer, triples: pd.DataFrame) -> pd.DataFrame:
    """Similarities of sentences when only their shared prefix is pooled: do its states know what follows?

    Three sentences begin with the same words A and continue with B (the query), C (the same in other words) and D
    (something else). Each is read whole, but only the tokens of A are pooled, by the model's own pooling. If their
    states hold something of what follows, A+B is more similar to A+C than to A+D; if not, all three vectors are equal.

    Args:
        model: An embedder.
        triples: Columns ``id``, ``prefix``, ``query``, ``positive``, ``negative``, as
            `workbook.corpora.authored.future_tokens` reads them; the last three are continuations.

    Returns:
        One row per triple: ``id``, ``positive`` and ``negative`` (cosine to the query), ``margin`` (the first cosine
        minus the second, -2 to 2; a paired difference, which shows effects that an accuracy of few triples hides), and
        ``correct``: 1.0 if the positive is more similar, 0.0 if the negative is, 0.5 if they differ by less than
        :data:`TIE`. The mean of ``correct`` is the accuracy.

    Raises:
        InvalidValueError: No triples, a missing column, or a model that does not begin with a Decoder.

    Source: LLM2Vec, section 4.1, figures 4 and 7; after Echo embeddings (Springer et al. 2024).
    """
    wanted = ["id", "prefix", "query", "positive", "negative"]
    if not set(wanted) <= set(triples.columns):
        raise InvalidValueError("triples", f"a frame with the columns {', '.join(wanted)}", list(triples.columns))
    module = decoder_of(model, triples["id"].tolist())
    vectors = {}
    for kind in ("query", "positive", "negative"):
        texts = [f"{prefix} {rest}" for prefix, rest in zip(triples["prefix"], triples[kind], strict=True)]
        lengths = _prefix_lengths(module, triples["prefix"], texts)
        features = batch_to_device(model.preprocess(texts), model.device)
        mask = features["pooling_mask"]
        features["pooling_mask"] = mask * (mask.cumsum(dim=1) <= lengths.to(mask.device).unsqueeze(1))
        vectors[kind] = model(features)["sentence_embedding"].float()
    frame = pd.DataFrame({"id": triples["id"].to_numpy()})
    for kind in ("positive", "negative"):
        frame[kind] = F.cosine_similarity(vectors["query"], vectors[kind], dim=-1).cpu().numpy().astype(float)
    frame["margin"] = frame["positive"] - frame["negative"]
    frame["correct"] = np.where(frame["margin"].abs() < TIE, 0.5, (frame["margin"] > 0).astype(float))
    return frame


def recency(model: SentenceTransformer, texts: Sequence[str], windows: int = 5, batch_size: int = 32) -> pd.DataFrame:
    """Movement of an embedding when one part of the text is exchanged, by the place of that part.

    Each text is cut into windows of equally many words. One window at a time is replaced by the same window of the
    next text in the list, and the embedding is compared with the original one. An embedding that depends mostly on the
    end moves most when the last window changes.

    Args:
        model: Any sentence-transformers model.
        texts: At least two strings, each of at least ``windows`` words; similar in length, so that windows compare.
        windows: Number of windows.
        batch_size: Texts per batch.

    Returns:
        One row per text and window: ``text`` (its index), ``window`` (0 is the beginning), ``movement`` (1 - cosine,
        0 to 2) and ``share`` (of the text's whole movement; the shares of a text add up to 1, so without a bias each is
        1 / windows).

    Raises:
        InvalidValueError: Fewer than two texts or windows, or a text too short to be cut.

    Source: the claim is Causal2Vec's (section 1) and NV-Embed's (section 3.2); the measurement is this project's.
    """
    windows = whole("windows", windows, 2)
    if isinstance(texts, str) or len(texts) < 2:
        raise InvalidValueError("texts", "at least two strings", texts)
    words = [text.split() for text in texts]
    for index, parts in enumerate(words):
        if len(parts) < windows:
            raise InvalidValueError(f"text {index}", f"at least {windows} words, one a window", texts[index])
    changed = []
    for own, donor in zip(words, [*words[1:], words[0]], strict=True):
        cuts, others = _cuts(own, windows), _cuts(donor, windows)
        changed += [" ".join(chain.from_iterable([*cuts[:n], others[n], *cuts[n + 1 :]])) for n in range(windows)]
    vectors = model.encode(
        [*map(" ".join, words), *changed], batch_size=batch_size, convert_to_tensor=True, show_progress_bar=False
    ).float()
    before, after = vectors[: len(texts)], vectors[len(texts) :].view(len(texts), windows, -1)
    movement = 1 - F.cosine_similarity(before.unsqueeze(1), after, dim=-1).cpu().double().numpy()
    rows, columns = np.indices(movement.shape)
    return pd.DataFrame(
        {
            "text": rows.ravel(),
            "window": columns.ravel(),
            "movement": movement.ravel(),
            "share": (movement / movement.sum(axis=1, keepdims=True)).ravel(),
        }
    )


def decoder_of(model: SentenceTransformer, items: Sequence, name: str = "texts") -> Decoder:
    """The model's first module, after a check of it and of the items to be read.

    Args:
        model: An embedder.
        items: The items.
        name: Name of the items, for the error.

    Raises:
        InvalidValueError: No items, or a model that does not begin with a Decoder.
    """
    if isinstance(items, str) or len(items) == 0:
        raise InvalidValueError(name, "at least one, in a list", items)
    module = model[0]
    if not isinstance(module, Decoder):
        raise InvalidValueError(
            "model", "a model whose first module is a Decoder", type(module).__name__, "Build it with workbook.build."
        )
    return module


@contextmanager
def reading(module: Decoder, mode: str) -> Iterator[None]:
    """Put what a module adapts into evaluation mode, and its decoder into an attention mode, while the block runs.

    Args:
        module: The first module of a model.
        mode: ``causal`` or ``bidirectional``.
    """
    parts = [getattr(module, name) for name in module.adapted]
    training = [part.training for part in parts]
    for part in parts:
        part.eval()
    try:
        with switched(module.decoder, mode):
            yield
    finally:
        for part, was in zip(parts, training, strict=True):
            part.train(was)


def features_of(model: SentenceTransformer, texts: Sequence[str], instruction: str | None) -> dict[str, Any]:
    """What a model reads of some texts, on its device.

    Args:
        model: An embedder.
        texts: Strings.
        instruction: The bare task instruction, or None.
    """
    return batch_to_device(model.preprocess(list(texts), prompt=instruction), model.device)


@contextmanager
def all_layers(module: Decoder, attentions: bool = False) -> Iterator[list[Any]]:
    """Keep what the decoder gives in the block, with the states of all its layers.

    Args:
        module: The first module of a model.
        attentions: Whether the weights of attention are kept too, which takes the implementation ``eager``.

    Yields:
        A list, to which each pass appends the decoder's output: ``hidden_states`` and ``attentions``.
    """
    decoder, passes = module.decoder, []
    kernel = decoder.config._attn_implementation
    asked = {"output_hidden_states": True, "output_attentions": attentions}

    def ask(_: Any, args: tuple, kwargs: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return args, {**kwargs, **asked}

    def keep(_: Any, args: tuple, output: Any) -> None:
        passes.append(output)

    hooks = [decoder.register_forward_pre_hook(ask, with_kwargs=True), decoder.register_forward_hook(keep)]
    if attentions:
        decoder.set_attn_implementation("eager")
    try:
        yield passes
    finally:
        for hook in hooks:
            hook.remove()
        decoder.set_attn_implementation(kernel)


def _strings(module: Decoder, ids: torch.Tensor) -> list[str]:
    return ["{context}" if token == CONTEXT else module.tokenizer.decode([token]) for token in ids.tolist()]


def _prefix_lengths(module: Decoder, prefixes: Sequence[str], texts: Sequence[str]) -> torch.Tensor:
    """Number of tokens of each text that begin inside its prefix."""
    offsets = module.tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return torch.tensor(
        [sum(start < len(prefix) for start, _ in spans) for prefix, spans in zip(prefixes, offsets, strict=True)]
    )


def _cuts(words: list[str], windows: int) -> list[list[str]]:
    return [part.tolist() for part in np.array_split(np.array(words, dtype=object), windows)]
