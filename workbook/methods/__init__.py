"""Methods by name: the one function that builds any of them, and how each is trained."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from ..errors import UnknownNameError
from ..scale import get_scale
from ..training.recipe import Recipe
from . import anchor, causal2vec, described, gritlm, icl, lens, llm2vec, nv_embed
from .chain import Chain, Options
from .stages import contrastive, fitted

if TYPE_CHECKING:
    import pandas as pd
    from sentence_transformers import SentenceTransformer

__all__ = ["METHODS", "Chain", "Method", "Options", "build", "describe", "fitted", "get", "hybrid", "options", "recipe"]


class Method(NamedTuple):
    """A method: its chain of modules, and how it is trained.

    Attributes:
        chain: Attention, template and pooling.
        recipe: A function of the names of a scale and a backbone; returns the training stages.
        options: A function of the same two names; returns the fields in which the chain differs there.
    """

    chain: Chain
    recipe: Callable[[str, str], Recipe]
    options: Callable[[str, str], dict[str, Any]] = lambda scale, backbone: {}

    def __repr__(self) -> str:
        """Its parts in words; functions have none."""
        return f"Method({self.chain.attention} attention, {self.chain.pooling} pooling, template {self.chain.template})"


def _supervised(scale: str, backbone: str) -> Recipe:
    return Recipe(stages=(contrastive(scale),))


METHODS: dict[str, Method] = {
    "mean": Method(Chain(pooling="mean"), _supervised),
    "weighted-mean": Method(Chain(pooling="weighted_mean"), _supervised),
    # The vector of an end-of-text token, as in LLM2Vec's EOS pooling.
    "last-token": Method(Chain(pooling="last_token", template="eos"), _supervised),
    "echo": Method(Chain(pooling="mean", template="echo"), _supervised),
    "llm2vec": Method(llm2vec.CHAIN, llm2vec.recipe),
    "nv-embed": Method(nv_embed.CHAIN, nv_embed.recipe),
    "lens": Method(lens.CHAIN, lens.recipe, lens.options),
    "causal2vec": Method(causal2vec.CHAIN, causal2vec.recipe, causal2vec.options),
    "anchor": Method(anchor.CHAIN, anchor.recipe, anchor.options),
    "icl": Method(icl.CHAIN, _supervised),
    "gritlm": Method(gritlm.CHAIN, gritlm.recipe),
}


def build(
    method: str, backbone: str | SentenceTransformer = "smollm2-135m", **options: Unpack[Options]
) -> SentenceTransformer:
    """Build the untrained embedder of a method on a backbone.

    The decoder's attention is measured, once per process for each kind of decoder and its settings. An embedder that is
    causal where it should be bidirectional is an error, not a silent loss of quality.

    Args:
        method: A name from :data:`METHODS`.
        backbone: A name or folder, see ``workbook.backbones.resolve``; or a model built earlier with the same
            attention, whose decoder is shared, not copied (another pooling of a large model costs no memory).
        **options: ``attention``, ``pooling``, ``pooling_options``, ``template``, ``suffix``, ``max_length`` (tokens),
            ``examples``, ``encoder``, ``encoder_options``, ``vector_behind_bos`` and ``prefix_cache`` replace the
            method's own; ``seed`` initialises new weights; ``dtype`` and ``attn_implementation`` replace what the
            machine's capability suggests; ``device`` places the model; ``adapter`` merges low-rank adapters into the
            decoder: a folder that peft wrote, a Hugging Face id, or several in the order of their training.

    Returns:
        A SentenceTransformer: ``encode(texts, prompt=instruction)`` gives float32 (texts, dim), not normalised.

    Raises:
        UnknownNameError: Unknown method, option, backbone, encoder, attention, pooling or template.
        InvalidValueError: A value outside its range, a decoder that can't be shared, or an adapter of another backbone.
        ModelNotFoundError, MissingDataError, DamagedFileError: A backbone or adapter that is absent or damaged.

    Examples:
        >>> model = build("mean", "tiny-llama", attention="bidirectional")
        >>> model.encode(["one text", "another"]).shape
        (2, 32)
    """
    model = get(method).chain.build(backbone, **options)

    from ..adapters import listed
    from ..modules.card import give_card, made_of

    if isinstance(backbone, str | PathLike):
        give_card(model, method, backbone=fspath(backbone), adapters=listed(options.get("adapter", ())))
    else:
        give_card(model, method, **made_of(backbone))
    return model


def hybrid(first: SentenceTransformer, second: SentenceTransformer, weight: float = 1.0) -> SentenceTransformer:
    """An embedder that concatenates the vectors of two others, such as a lexicon and a dense one.

    Args:
        first: An embedder.
        second: Another embedder, on the same device.
        weight: Weight of the second's cosine relative to the first's.

    Raises:
        InvalidValueError: A weight that is not positive, something that is not an embedder, or two different devices.

    Source: LENS, section 5.3.

    Examples:
        >>> both = hybrid(build("lens", "tiny-llama"), build("mean", "tiny-llama"))
        >>> both.encode(["one text"]).shape
        (1, 64)
    """
    from sentence_transformers import SentenceTransformer

    from ..modules import Hybrid
    from ..modules.card import give_card, made_of

    module = Hybrid(first, second, weight)
    model = SentenceTransformer(modules=[module], device=str(first.device), similarity_fn_name="cosine")
    names = [getattr(part.model_card_data, "method", "another model") for part in (first, second)]
    give_card(model, f"hybrid of {names[0]} and {names[1]}", **made_of(first, second))
    return model


def recipe(method: str, scale: str, backbone: str = "smollm2-135m") -> Recipe:
    """The training stages of a method at a scale, for ``workbook.training.train``.

    Args:
        method: A name from :data:`METHODS`.
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError, ModelNotFoundError: No such method, scale or backbone.

    Examples:
        >>> [stage.name for stage in recipe("llm2vec", "quick", "tiny-llama").stages]
        ['mntp', 'simcse', 'contrastive']
    """
    return fitted(get(method).recipe(scale, backbone), scale, backbone)


def options(method: str, scale: str, backbone: str = "smollm2-135m") -> dict[str, Any]:
    """Options of :func:`build` for a method at a scale: at scale ``paper``, what the paper has and a laptop has not.

    Args:
        method: A name from :data:`METHODS`.
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError, ModelNotFoundError: No such method, scale or backbone.

    Examples:
        >>> options("causal2vec", "paper", "tiny-llama")["encoder"]
        'intfloat/e5-base-v2'
    """
    get_scale(scale)
    return get(method).options(scale, backbone)


def describe(*methods: str, scale: str = "cpu", backbone: str = "smollm2-135m", **options: Any) -> pd.DataFrame:
    """What methods read, who sees whom, what is pooled and what trains, for ``workbook.figures.anatomy``.

    Everything but a few words is taken from chains and recipes, and so says what :func:`build` and training do.

    Args:
        *methods: Names from :data:`METHODS`; all of them if none is given.
        scale: Name of the scale; at ``paper`` some methods train other parts.
        backbone: Name of the backbone, for the same reason.
        **options: Fields of the chain that replace the methods' own, as of :func:`build`.

    Returns:
        Tidy rows in reading order, texts throughout. ``shows`` says what a row is of: ``method`` (its name, and what
        is new in it); ``token``, a piece of the template with an instruction (``pooled`` or ``read``), BOS too, which
        some tokenizers do not write; ``attention``; ``pooling``; ``stage`` (its objective, and what it teaches); and
        of each stage the parts with weights, by the place where they are: ``decoder``, ``context`` or ``dictionary``
        (``trained`` or ``frozen``). Columns ``method``, ``shows``, ``stage``, ``name``, ``detail`` and ``state``.

    Raises:
        UnknownNameError: No such method, scale, option, template or pooling.
        ModelNotFoundError: No such backbone.
        InvalidValueError: As :func:`build`, as far as it can be checked without a model.

    Examples:
        >>> rows = describe("anchor", backbone="tiny-llama")
        >>> rows.loc[rows["state"] == "pooled", "name"].tolist()
        ['EOS']
    """
    import pandas as pd

    found = []
    for method in methods or METHODS:
        stages = recipe(method, scale, backbone)
        chain = get(method).chain.with_options(**get(method).options(scale, backbone) | options)
        found.extend({"method": method} | row for row in described.rows(method, chain, stages))
    return pd.DataFrame(found, columns=["method", "shows", "stage", "name", "detail", "state"]).fillna("")


def get(method: str) -> Method:
    """The method of that name.

    Raises:
        UnknownNameError: No such method; the message lists all.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise UnknownNameError("method", method, METHODS)
    return METHODS[method]
