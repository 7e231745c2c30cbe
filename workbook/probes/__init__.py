"""Probes: measurements of what a decoder and its embeddings know. They return frames and states, and draw nothing.

A probe takes a sentence-transformers model whose first module is a `workbook.modules.Decoder`, and leaves it as it was.
"""

from .anchors import anchor_losses, regenerated
from .atlas import cluster_map, printed_pairs
from .baselines import BASELINES, baseline_search
from .batches import measured_negatives
from .compute import SIZES, Bill, Size, estimate, padding_share, utilisation
from .contextual import SINK, contextual_norms, layer_ranks, path_gradients
from .cost import encoding_cost, measured_front, pareto, training_cost
from .dial import (
    IDF,
    Collection,
    Pooled,
    States,
    collect,
    content_clusters,
    lexicon_search,
    lexicon_vectors,
    pooled_by_zero,
    pooled_logits,
    weights,
    zero_at,
)
from .dictionary import DEAD, adam_bound, dead, influence, movement, perplexity, silencing, top_tokens
from .heads import HEADS, SIZED, Head, Heads, clustered, head_of
from .index import BITS, POSTING_BYTES, index_bytes, index_cost, index_forms, stored
from .keywords import KEYWORD_KINDS, keyword_kinds
from .latents import discriminating_latents, latent_attention, token_attention
from .lexicon import by_position, cluster_names, top_clusters
from .listening import (
    REPLACEMENTS,
    context_of_length,
    contextual_tokens,
    given_context,
    listening,
    vectors_given,
)
from .matches import LexiconReading, faithfulness, lexicon_readings, matched, matches
from .negatives import IN_BATCH, false_negative_counts, false_negatives, label_loss, pushed_away
from .states import TIE, layer_cosine, layer_means, prefix_movement, prefix_test, reading, recency
from .vectors import cosine_parts, vector_lengths, vector_map, vector_spread
from .words import word_guesses, word_probe, word_states

__all__ = [
    "BASELINES",
    "BITS",
    "DEAD",
    "HEADS",
    "IDF",
    "IN_BATCH",
    "KEYWORD_KINDS",
    "POSTING_BYTES",
    "REPLACEMENTS",
    "SINK",
    "SIZED",
    "SIZES",
    "TIE",
    "Bill",
    "Collection",
    "Head",
    "Heads",
    "LexiconReading",
    "Pooled",
    "Size",
    "States",
    "adam_bound",
    "anchor_losses",
    "baseline_search",
    "by_position",
    "cluster_map",
    "cluster_names",
    "clustered",
    "collect",
    "content_clusters",
    "context_of_length",
    "contextual_norms",
    "contextual_tokens",
    "cosine_parts",
    "dead",
    "discriminating_latents",
    "encoding_cost",
    "estimate",
    "faithfulness",
    "false_negative_counts",
    "false_negatives",
    "given_context",
    "head_of",
    "index_bytes",
    "index_cost",
    "index_forms",
    "influence",
    "keyword_kinds",
    "label_loss",
    "latent_attention",
    "layer_cosine",
    "layer_means",
    "layer_ranks",
    "lexicon_readings",
    "lexicon_search",
    "lexicon_vectors",
    "listening",
    "matched",
    "matches",
    "measured_front",
    "measured_negatives",
    "movement",
    "padding_share",
    "pareto",
    "path_gradients",
    "perplexity",
    "pooled_by_zero",
    "pooled_logits",
    "prefix_movement",
    "prefix_test",
    "printed_pairs",
    "pushed_away",
    "reading",
    "recency",
    "regenerated",
    "silencing",
    "stored",
    "token_attention",
    "top_clusters",
    "top_tokens",
    "training_cost",
    "utilisation",
    "vector_lengths",
    "vector_map",
    "vector_spread",
    "vectors_given",
    "weights",
    "word_guesses",
    "word_probe",
    "word_states",
    "zero_at",
]
