"""Methods by name, and the one function that builds any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UnknownNameError
from .chain import Chain

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

METHODS: dict[str, Chain] = {
    "mean": Chain(pooling="mean"),
    "weighted-mean": Chain(pooling="weighted_mean"),
    # The vector of an end-of-text token, as in LLM2Vec's EOS pooling.
    "last-token": Chain(pooling="last_token", template="eos"),
    "echo": Chain(pooling="mean", template="echo"),
}


def build(method: str, backbone: str | SentenceTransformer = "smollm2-135m", **options: Any) -> SentenceTransformer:
    """Build the untrained embedder of a method on a backbone.

    Every build ends by measuring the attention: an embedder that is causal where it should be bidirectional is an
    error, not a silent loss of quality.

    Args:
        method: A name from :data:`METHODS`.
        backbone: A name or folder, see ``workbook.backbones.resolve``; or a model built before with the same attention,
            whose decoder is shared, not copied (another pooling of a large model costs no memory).
        **options: ``attention``, ``pooling``, ``template`` and ``max_length`` (tokens) replace the method's own;
            ``dtype`` and ``attn_implementation`` replace what the machine's capability suggests; ``device`` places the
            model.

    Returns:
        A SentenceTransformer: ``encode(texts, prompt=instruction)`` gives float32 (texts, dim), not normalised.

    Raises:
        UnknownNameError: Unknown method, option, backbone, attention, pooling or template.
        InvalidValueError: A value outside its range, or a decoder that can't be shared.

    Example:
        >>> model = build("mean", "tiny-llama", attention="bidirectional")
        >>> model.encode(["one text", "another"]).shape
        (2, 32)
    """
    if not isinstance(method, str) or method not in METHODS:
        raise UnknownNameError("method", method, METHODS)
    return METHODS[method].build(backbone, **options)
