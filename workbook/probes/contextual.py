"""Inside a decoder that reads a contextual token: its length, attention sinks, ranks by layer, and whose gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from ..errors import InvalidValueError
from ..modules import ContextualDecoder, ContextualPooling
from ..modules.contextual import REPRESENTATIONS
from ..training.prepare import prepared
from .states import all_layers, decoder_of, features_of, reading

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..training.recipe import Stage

SINK = 30.0
"""A contextual token is an attention sink if its residual norm at the middle layer is more than this many times that
of the median token of its text. In SmolLM2-135M BOS has some 150 times, and a word up to twice.
"""


@torch.no_grad()
def contextual_norms(model: SentenceTransformer, texts: Sequence[str], instruction: str | None = None) -> pd.DataFrame:
    """Lengths of the contextual token by layer, beside BOS and the words, and the attention that it draws.

    Where a token draws attention that has nothing to look for, its state grows by two orders of magnitude. Decoders
    keep one such *sink*, the first token. What a second one was to say is then lost.

    Args:
        model: A model that reads contextual tokens.
        texts: Strings; each is read alone.
        instruction: The bare task instruction in front of all of them, or None.

    Returns:
        One row per text and layer: ``text`` (its index), ``layer`` (0 is what the decoder reads, the last is the output
        of the final norm), ``context``, ``bos`` and ``words``: the Euclidean norms of the contextual token (the longest
        of several), of the first token, and of the median of the others; ``attention`` and ``attention_bos``: the share
        of attention, 0 to 1, that the tokens behind the contextual one pay to it (to all of several) and to the first
        token, as the mean over tokens and heads of the layer that gives these states (NaN at layer 0, and where no
        token stands behind it); and ``sink``, the same in all rows of a text: whether ``context`` exceeds ``words``
        :data:`SINK` times at the middle layer. In a template without BOS the first token stands for it.

    Raises:
        InvalidValueError: No texts, or a model without contextual tokens.

    Source: attention sinks, Xiao et al. 2024; massive activations, Sun et al. 2024; the measure is this project's.
    """
    module = reader_of_context(model, texts)
    frames = []
    with reading(module, module.attention), all_layers(module, attentions=True) as passes:
        for index, text in enumerate(texts):
            features = features_of(model, [text], instruction)
            model(features)
            made = passes.pop()
            norms = torch.stack(made.hidden_states).squeeze(1).float().norm(dim=-1)  # (layers + 1, tokens)
            place = features["context_mask"][0].bool()
            others = ~place
            others[0] = False
            behind = torch.arange(len(place), device=place.device) > int(place.nonzero().max())
            paid = torch.stack(made.attentions).squeeze(1).float().mean(dim=1)[:, behind]  # (layers, behind, tokens)
            nothing = paid.new_full((1,), np.nan)
            columns = {
                "context": norms[:, place].amax(dim=1),
                "bos": norms[:, 0],
                "words": norms[:, others].median(dim=1).values,
                "attention": torch.cat([nothing, paid[..., place].sum(dim=-1).mean(dim=1)]),
                "attention_bos": torch.cat([nothing, paid[..., 0].mean(dim=1)]),
            }
            own = pd.DataFrame({name: value.cpu().double().numpy() for name, value in columns.items()})
            middle = own.loc[(len(own) - 1) // 2]
            own.insert(0, "layer", range(len(own)))
            own.insert(0, "text", index)
            frames.append(own.assign(sink=bool(middle["context"] > SINK * middle["words"])))
    return pd.concat(frames, ignore_index=True)


@torch.no_grad()
def layer_ranks(
    model: SentenceTransformer, queries: Sequence[str], documents: Sequence[str], instruction: str | None = None
) -> pd.DataFrame:
    """How well each query finds its document by the state of one token, layer by layer.

    Args:
        model: A model that reads contextual tokens.
        queries: Strings.
        documents: As many; each is the one that belongs to the query at its place.
        instruction: The bare task instruction in front of the queries, or None.

    Returns:
        One row per token, layer and query: ``token`` (``context``, the mean of the contextual tokens, or ``last``),
        ``layer`` (0 is what the decoder reads, the last is the output of the final norm), ``query`` (its index) and
        ``reciprocal_rank`` of its document by cosine, 0 to 1; equal scores count against it.

    Raises:
        InvalidValueError: No texts, not as many documents as queries, or a model without contextual tokens.
    """
    module = reader_of_context(model, queries)
    if isinstance(documents, str) or len(documents) != len(queries):
        raise InvalidValueError("documents", f"one for each of {len(queries)} queries", documents)
    states: dict[str, list[torch.Tensor]] = {"context": [], "last": []}
    with reading(module, module.attention), all_layers(module) as passes:
        for text, asked in [*((one, instruction) for one in queries), *((one, None) for one in documents)]:
            features = features_of(model, [text], asked)
            model(features)
            hidden = torch.stack(passes.pop().hidden_states).squeeze(1).float()
            states["context"].append(hidden[:, features["context_mask"][0].bool()].mean(dim=1))
            states["last"].append(hidden[:, -1])
    frames = []
    for token, found in states.items():
        asked, given = (
            F.normalize(torch.stack(side, dim=1), dim=-1) for side in (found[: len(queries)], found[len(queries) :])
        )  # (layers + 1, texts, dim)
        cosines = (asked @ given.transpose(1, 2)).cpu()
        own = cosines.diagonal(dim1=1, dim2=2).unsqueeze(-1)
        ranks = (cosines >= own - 1e-6).sum(dim=-1).numpy()  # equal states differ in their last digits
        layers, numbers = np.indices(ranks.shape)
        columns = {"layer": layers.ravel(), "query": numbers.ravel(), "reciprocal_rank": 1 / ranks.ravel()}
        frames.append(pd.DataFrame({"token": token, **columns}))
    return pd.concat(frames, ignore_index=True)


def path_gradients(
    model: SentenceTransformer,
    queries: Sequence[str],
    documents: Sequence[str],
    stage: Stage,
    instruction: str | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """How much of what updates the decoder comes through each half of a concatenated vector.

    The loss is InfoNCE of the whole vector, of one batch. Its gradient in the decoder's adapters is a sum: what comes
    through the state of the contextual token, and what comes through that of the last token. Each is measured while the
    other half is held.

    Args:
        model: A model that reads contextual tokens and concatenates several states; it is left as it was.
        queries: Strings.
        documents: As many, those that belong to the queries, with the others as negatives.
        stage: Says which adapters, at what temperature (its option, 0.05 by default) and ``max_length``.
        instruction: The bare task instruction in front of the queries, or None.
        seed: Of the fresh adapters.

    Returns:
        One row per half: ``part``, ``norm`` of its gradient over all adapters, and ``share`` of it in the sum of the
        norms, 0 to 1; and a row ``whole`` with the norm of the gradient that training sees, and share 1.

    Raises:
        InvalidValueError: Fewer than two queries, not as many documents, a model without contextual tokens, or one
            whose vector is not several states.
    """
    module = reader_of_context(model, queries)
    pooling = model[1]
    parts = REPRESENTATIONS[pooling.representation] if isinstance(pooling, ContextualPooling) else ()
    if len(parts) < 2:
        raise InvalidValueError("model", "one that concatenates several states", getattr(pooling, "representation", ""))
    if len(queries) < 2 or len(documents) != len(queries):
        raise InvalidValueError(
            "queries and documents", "two or more of each, in pairs", (len(queries), len(documents))
        )
    found = {}
    with prepared(model, stage, seed), torch.enable_grad():
        weights = [one for one in module.decoder.parameters() if one.requires_grad]
        sides = [
            model(features_of(model, texts, asked))["sentence_embedding"].float()
            for texts, asked in ((queries, instruction), (documents, None))
        ]
        for part in (*parts, "whole"):
            kept = [_holding_the_rest(side, parts, part) for side in sides]
            cosines = F.normalize(kept[0], dim=1) @ F.normalize(kept[1], dim=1).T
            right = torch.arange(len(cosines), device=cosines.device)
            loss = F.cross_entropy(cosines / stage.options.get("temperature", 0.05), right)
            gradients = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
            found[part] = float(torch.stack([one.float().norm() for one in gradients if one is not None]).norm())
    through = sum(found[part] for part in parts)
    shares = [found[part] / through for part in parts]
    return pd.DataFrame({"part": [*found], "norm": [*found.values()], "share": [*shares, 1.0]})


def _holding_the_rest(vectors: torch.Tensor, parts: Sequence[str], part: str) -> torch.Tensor:
    pieces = zip(parts, vectors.chunk(len(parts), dim=1), strict=True)
    return torch.cat([piece if part in (name, "whole") else piece.detach() for name, piece in pieces], dim=1)


def reader_of_context(model: SentenceTransformer, texts: Sequence[str]) -> ContextualDecoder:
    """The model's first module, if it reads contextual tokens, after a check of the texts.

    Args:
        model: An embedder.
        texts: The texts to be read.

    Raises:
        InvalidValueError: No texts, or a model without contextual tokens.
    """
    module = decoder_of(model, texts)
    if not isinstance(module, ContextualDecoder):
        raise InvalidValueError("model", "one that reads contextual tokens, such as causal2vec", type(module).__name__)
    return module
