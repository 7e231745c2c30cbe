"""The chain that the methods share: decoder, then pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, TypedDict

from ..errors import InvalidValueError, UnknownNameError
from ..resolved import resolved, resolved_options
from ..templates import Template, as_template

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

    from ..modules import Decoder, Lexicon

LOADING = ("dtype", "attn_implementation", "device", "adapter")
"""Options that say how a backbone is loaded, not what is built on it."""

_TEXTS = 64  # by which a share of active weights is measured


class Options(TypedDict, total=False):
    """The options of :func:`workbook.build`, for editors and type checkers; see :class:`Chain` and :data:`LOADING`."""

    pooling: str
    pooling_options: Mapping[str, Any]
    attention: str
    template: str | Mapping[str, Any] | Template
    max_length: int
    suffix: str
    examples: Mapping[str, Any]
    encoder: str | None
    encoder_options: Mapping[str, Any]
    vector_behind_bos: bool
    prefix_cache: bool
    seed: int
    dtype: str | torch.dtype
    attn_implementation: str
    device: str | None
    adapter: str | PathLike | Sequence[str | PathLike]


@dataclass(frozen=True)
class Chain:
    """A chain as data: attention, template and pooling are independent choices.

    Attributes:
        pooling: One of ``workbook.modules.POOLINGS``.
        pooling_options: Options of the pooling module, such as ``{"latents": 64}``.
        attention: ``causal`` or ``bidirectional``.
        template: Name of a template, or a Template.
        max_length: Longest input in tokens.
        suffix: The suffix of a text where the template says ``{eos}``: ``eos``, ``answer`` or ``keywords``; see
            :class:`~workbook.templates.Template`.
        examples: For a template with a place for them: pairs of a query and its response, by bare instruction.
        encoder: Name of a bidirectional encoder that makes contextual tokens of a text, or None.
        encoder_options: ``tokens``, ``pretrained``, ``layers``, ``length``, ``prefix``, ``sees_instruction`` and
            ``trainable``, see :func:`~workbook.modules.context_length.contextual_decoder`.
        vector_behind_bos: Whether BOS precedes a vector that the decoder reads in place of a word; see
            :class:`~workbook.modules.Decoder`.
        prefix_cache: Whether what stands in front of a text is read once and kept; see
            :class:`~workbook.modules.Decoder`.
    """

    pooling: str
    pooling_options: Mapping[str, Any] = field(default_factory=dict)
    attention: str = "causal"
    template: Any = "plain"
    max_length: int = 512
    suffix: str = "eos"
    examples: Mapping[str, Any] = field(default_factory=dict)
    encoder: str | None = None
    encoder_options: Mapping[str, Any] = field(default_factory=dict)
    vector_behind_bos: bool = False
    prefix_cache: bool = False

    def __post_init__(self):
        for name in ("pooling_options", "encoder_options", "examples"):
            if not isinstance(given := getattr(self, name), Mapping):
                raise InvalidValueError(name, "a mapping of names to values", given)

    def layout(self) -> Template:
        """The template with the chain's suffix and examples.

        Raises:
            UnknownNameError: No such template.
            InvalidValueError: A suffix or examples that the template has no place for.
        """
        template = as_template(self.template)
        own = {"suffix": self.suffix} if self.suffix != "eos" else {}
        return template.with_(**own, **({"examples": self.examples} if self.examples else {}))

    def resolved(self) -> dict[str, Any]:
        """The chain as plain data, with the template itself and the defaults of the options.

        Raises:
            UnknownNameError, InvalidValueError: As :meth:`build`, as far as it can be checked without a model.
        """
        from ..modules import encoder_options, resolved_pooling

        return resolved(self) | {
            "template": resolved(self.layout()),
            "pooling_options": resolved_pooling(self.pooling, self.pooling_options),
            "encoder_options": resolved_options("encoder", encoder_options(self.encoder, self.encoder_options)),
        }

    def with_options(self, **options: Any) -> Chain:
        """The chain with other values of some fields.

        Raises:
            UnknownNameError: A field that does not exist.
            InvalidValueError: Options of pooling or encoder, or examples, that are not a mapping.
        """
        self._refuse_unknown(options)
        return replace(self, **options)

    def with_loading(self, **options: Any) -> tuple[Chain, dict[str, Any]]:
        """The chain with other values of some fields, and the loading options among those that are given.

        Args:
            **options: As of :meth:`build`.

        Raises:
            UnknownNameError: Neither a field nor one of :data:`LOADING`.
            InvalidValueError: As :meth:`with_options`.
        """
        self._refuse_unknown(options, LOADING)
        loading = {name: value for name, value in options.items() if name in LOADING}
        return self.with_options(**{name: options[name] for name in options if name not in loading}), loading

    def _refuse_unknown(self, options: Mapping[str, Any], also: tuple[str, ...] = ()) -> None:
        names = (*(one.name for one in fields(self)), *also)
        for option in options:
            if option not in names:
                raise UnknownNameError("option", option, names)

    def build(self, backbone: str | SentenceTransformer, seed: int = 0, **options: Any) -> SentenceTransformer:
        """Build the model on a backbone.

        Args:
            backbone: A name or folder, or a model whose decoder is shared.
            seed: Of new weights: two builds with the same seed are equal.
            **options: Fields of the chain to replace, or loading options (:data:`LOADING`).

        Raises:
            UnknownNameError: An option that does not exist.
            InvalidValueError: A shared decoder with another attention, or loading options for a shared decoder; or as
                :func:`~workbook.adapters.with_adapters`.
            MissingDataError, DamagedFileError: As :func:`~workbook.adapters.with_adapters`.
        """
        chain, loading = self.with_loading(**options)

        # Here, and not above, because these imports take seconds and listing the methods should not.
        import torch
        from sentence_transformers import SentenceTransformer

        from .. import backbones
        from ..adapters import with_adapters
        from ..modules import make_decoder, make_pooling
        from ..modules.lexicon import share_of

        if isinstance(backbone, SentenceTransformer):
            decoder, tokenizer = _shared(backbone, chain.attention, list(loading))
            attention = None  # known: it was measured when the shared decoder was built
        else:
            adapter = loading.pop("adapter", None)
            decoder = backbones.load_decoder(backbone, **loading)
            if adapter is not None:
                decoder = with_adapters(decoder, adapter)
            tokenizer = backbones.load_tokenizer(backbone)
            attention = chain.attention
        layout = {
            "attention": attention,
            "template": chain.layout(),
            "max_length": chain.max_length,
            "vector_behind_bos": chain.vector_behind_bos,
            "prefix_cache": chain.prefix_cache,
        }
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            module = make_decoder(decoder, tokenizer, chain.encoder, chain.encoder_options, **layout)
            width, name = module.get_embedding_dimension(), decoder.config.name_or_path
            pooling = make_pooling(chain.pooling, width, name, **chain.pooling_options)
        modules = [module, pooling.to(decoder.device)]
        if (share := share_of(chain.pooling_options.get("zero"))) is not None:
            _activate(module, pooling, share)
        return SentenceTransformer(modules=modules, device=str(decoder.device), similarity_fn_name="cosine")


def _activate(decoder: Decoder, lexicon: Lexicon, share: float) -> None:
    """Set the zero of a lexicon by the first of the authored texts; no training moves it."""
    import torch
    from sentence_transformers.util import batch_to_device

    from ..corpora.authored import topics

    texts = topics()["text"].head(_TEXTS).tolist()
    with torch.no_grad():
        lexicon.activate(share, decoder(batch_to_device(decoder.preprocess(texts), decoder.decoder.device)))


def _shared(model: SentenceTransformer, attention: str, loading: list[str]) -> tuple[Any, Any]:
    """Decoder and tokenizer of another model, if they can be shared."""
    from ..modules import Decoder

    if not isinstance(model[0], Decoder):
        raise InvalidValueError("backbone", "a model that begins with a Decoder", type(model[0]).__name__)
    if loading:
        raise InvalidValueError(
            ", ".join(loading), "nothing, where a loaded decoder is shared", loading, "Name the backbone instead."
        )
    if model[0].attention != attention:
        # One decoder has one attention: switching it here would silently switch the other model too.
        raise InvalidValueError(
            "attention", f"{model[0].attention}, as in the model that shares its decoder", attention,
            "Name the backbone to load a second decoder.",
        )  # fmt: skip
    return model[0].decoder, model[0].tokenizer
