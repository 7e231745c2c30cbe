"""Probes of lexicon vectors: the clusters with the largest weights in a text, their words, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import normalize

from ..errors import InvalidValueError, whole
from ..modules import Decoder, Lexicon
from ..modules.lexicon import pooled_positions
from ..vocabulary.names import name_of
from ..vocabulary.sparse import sparse
from ..vocabulary.tokens import token_text
from .states import decoder_of, reading

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..templates import Encoded


@torch.no_grad()
def top_clusters(
    model: SentenceTransformer, texts: Sequence[str], instruction: str | None = None, top: int = 5
) -> pd.DataFrame:
    """The clusters with the largest weights in each text, with their words: what the text is about.

    Args:
        model: An embedder whose pooling is a lexicon.
        texts: Strings, one forward pass each.
        instruction: The bare task instruction in front of every text, or None.
        top: Largest number of clusters per text; those without a weight are left out.

    Returns:
        One row per text and cluster, the texts in order, the largest weight first: ``text`` (its index), ``cluster``
        (from 0), ``weight`` (0 to 1, in the vector of length 1), ``words`` (the tokens of the cluster as text, in the
        order of their ids), ``position`` (from 0, of the state with the cluster's largest logit, among all tokens that
        are read, those of the template too), ``token`` (the token of the text that this state predicts, as text; its
        own if none comes next, as for a last token) and ``own`` (True if the cluster holds a token of the text).

    Raises:
        InvalidValueError: No texts, a text or instruction that is not a string, a ``top`` that is not a positive whole
            number, a model that is not a Decoder followed by a Lexicon, or a tokenizer with tokens that the Lexicon
            doesn't know.

    Source: LENS, table 3.
    """
    module, lexicon = lexicon_parts(model, texts)
    rows = []
    for index, encoded in enumerate(module.encode_texts(texts, instruction)):
        features = read_one(module, encoded)
        weights = sparse(lexicon(features)["sentence_embedding"], top)[0]
        words = lexicon.words(module.tokenizer, weights)
        positions, following = lexicon.contributions(features)[0].tolist(), predicted(module, encoded)
        marked = features["input_ids"][features["pooling_mask"].bool()]
        own = set(lexicon.clusters[marked].tolist())
        for (cluster, weight), held in zip(weights.items(), words, strict=True):
            position = positions[cluster]
            rows.append((index, cluster, weight, held, position, following[position], cluster in own))
    return pd.DataFrame(rows, columns=["text", "cluster", "weight", "words", "position", "token", "own"])


@torch.no_grad()
def by_position(
    model: SentenceTransformer, text: str, clusters: Sequence[int], instruction: str | None = None
) -> pd.DataFrame:
    """Contribution of each pooled position of a text to some clusters, before the pooling.

    Args:
        model: An embedder whose pooling is a lexicon.
        text: The text.
        clusters: Their numbers, from 0.
        instruction: The bare task instruction in front of the text, or None.

    Returns:
        log(1 + relu(logit - zero)), float64 (pooled positions, clusters). The rows are the positions in order, each
        labelled with the ``token`` that it predicts, as in :func:`top_clusters`; a token that occurs twice is there
        twice. The largest value of a column, or with ``sum`` pooling their sum, is the weight before scaling to length
        1.

    Raises:
        InvalidValueError: A text or instruction that is not a string, no clusters or one that the Lexicon does not
            have, or a model that is not a Decoder followed by a Lexicon.

    Source: LENS, equation 1 and section 3.2.2.
    """
    module, lexicon = lexicon_parts(model, [text])
    chosen, known = np.asarray(clusters), range(len(lexicon.head))
    if chosen.dtype.kind not in "iu" or chosen.ndim != 1 or not chosen.size or not {*chosen.tolist()} <= {*known}:
        raise InvalidValueError("clusters", f"whole numbers from 0 to {known[-1]}, at least one, in a list", clusters)
    (encoded,) = module.encode_texts([text], instruction)
    features = read_one(module, encoded)
    pooled = pooled_positions(features["pooling_mask"], features["attention_mask"], lexicon.pooling)[0]
    # By the module itself: some of its rows, and every position as a text of one token.
    part = Lexicon(lexicon.head[chosen.tolist()], "last", zero=lexicon.zero)
    states = features["token_embeddings"][0, pooled].unsqueeze(1)
    weights = part.weights({"token_embeddings": states, "attention_mask": torch.ones_like(states[..., 0])})
    tokens = [token for token, here in zip(predicted(module, encoded), pooled.tolist(), strict=True) if here]
    return pd.DataFrame(
        weights.cpu().numpy().astype(float),
        index=pd.Index(tokens, name="token"),
        columns=pd.Index(chosen.tolist(), name="cluster"),
    )


@torch.no_grad()
def cluster_names(
    model: SentenceTransformer,
    clusters: Sequence[int] | None = None,
    *,
    top: int = 2,
    rows: torch.Tensor | None = None,
) -> list[str]:
    """Names of clusters: the tokens nearest to the centre of each.

    The centre is the mean of the directions of a cluster's rows, and near is what has its direction. Two tokens that
    differ by a leading space alone are one text.

    Args:
        model: An embedder whose pooling is a lexicon.
        clusters: Their numbers, from 0; None for all.
        top: Largest number of tokens in a name.
        rows: The head that was clustered, floating (vocabulary, dim), such as ``load_head(backbone).weight``. None for
            the decoder's input embeddings. They are the head's rows in SmolLM2 and wherever the two are tied; elsewhere
            they stand in for them, and may put other tokens of the cluster first.

    Returns:
        For each cluster its tokens without leading spaces, joined by commas; empty for a cluster without tokens.

    Raises:
        InvalidValueError: No such cluster, a head of another vocabulary, a ``top`` that is not a positive whole number,
            or a model that is not a Decoder followed by a Lexicon.

    Source: LENS, table 3, which names each cluster by two tokens.
    """
    module, lexicon = lexicon_parts(model, [""])
    top, known = whole("top", top), range(len(lexicon.head))
    chosen = [*known] if clusters is None else [*clusters]
    if unknown := [cluster for cluster in chosen if cluster not in known]:
        raise InvalidValueError("clusters", f"numbers from 0 to {known[-1]}", unknown[0])
    rows = module.decoder.get_input_embeddings().weight if rows is None else rows
    if rows.ndim != 2 or len(rows) < len(lexicon.clusters):
        expected = f"the head that was clustered, of {len(lexicon.clusters)} tokens"
        raise InvalidValueError("rows", expected, tuple(rows.shape), "Name the backbone that the clusters came from.")
    assignment = lexicon.clusters.cpu()[: len(module.tokenizer)]
    tokens = torch.isin(assignment, torch.tensor(chosen, dtype=torch.int64)).nonzero()[:, 0]
    owner = assignment[tokens]
    directions = normalize(rows[tokens.to(rows.device)].float().cpu(), dim=1)
    centres = torch.zeros(len(lexicon.head), directions.shape[1]).index_add_(0, owner, directions)
    nearness = (directions * normalize(centres, dim=1)[owner]).sum(dim=1)
    nearness = nearness.round(decimals=5)  # of two tokens both are as near: the first by number, whatever the rounding
    members: dict[int, list[int]] = {cluster: [] for cluster in chosen}
    for place in nearness.argsort(descending=True, stable=True).tolist():
        members[int(owner[place])].append(int(tokens[place]))
    return [", ".join(map(readable, name_of(module.tokenizer, members[cluster], top))) for cluster in chosen]


def readable(token: str) -> str:
    """A token as text in one line: spaces as ``␣``, other invisible characters as in Python.

    Args:
        token: Its text.
    """
    return repr(token)[1:-1].replace(" ", "␣")


def lexicon_parts(model: SentenceTransformer, texts: Sequence[str]) -> tuple[Decoder, Lexicon]:
    """The model's decoder and lexicon, after a check of both and of the texts.

    Args:
        model: An embedder.
        texts: Strings, at least one.

    Raises:
        InvalidValueError: Other modules, or other texts.
    """
    module = decoder_of(model, texts)
    if not (len(model) > 1 and isinstance(model[1], Lexicon)):
        got = [type(part).__name__ for part in model]
        raise InvalidValueError("model", "a Decoder and a Lexicon", got, "Build it with workbook.build('lens').")
    return module, model[1]


def read_one(module: Decoder, encoded: Encoded) -> dict[str, Any]:
    """The features of one text with its token states, all of one row.

    Args:
        module: The decoder.
        encoded: The text.
    """
    names = ("input_ids", "pooling_mask")
    features = {k: torch.tensor([v], device=module.decoder.device) for k, v in zip(names, encoded[:2], strict=True)}
    with reading(module, module.attention):
        return module({**features, "attention_mask": torch.ones_like(features["input_ids"])})


def predicted(module: Decoder, encoded: Encoded) -> list[str]:
    """For every position the token of the text that comes next, or its own if none does.

    Args:
        module: The decoder.
        encoded: The text.
    """
    ids, marked, _ = encoded
    following = zip(ids, [*ids[1:], 0], [*marked[1:], 0], strict=True)
    return [token_text(module.tokenizer, after if of_text else here) for here, after, of_text in following]
