"""The chain that the methods share: decoder, then pooling."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ..errors import UnknownNameError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

LOADING = ("dtype", "attn_implementation", "device")


@dataclass(frozen=True)
class Chain:
    """A chain as data: attention, template and pooling are independent choices.

    Attributes:
        pooling: ``mean``, ``weighted_mean`` or ``last_token``.
        attention: ``causal`` or ``bidirectional``.
        template: Name of a template, or a Template.
        max_length: Longest input in tokens.
    """

    pooling: str
    attention: str = "causal"
    template: Any = "plain"
    max_length: int = 512

    def build(self, backbone: str, **options: Any) -> SentenceTransformer:
        """The model on a backbone; ``options`` replace fields of the chain or say how the backbone is loaded.

        Raises:
            UnknownNameError: An option that does not exist.
        """
        names = [field.name for field in fields(self)]
        for option in options:
            if option not in (*names, *LOADING):
                raise UnknownNameError("option", option, (*names, *LOADING))
        chain = replace(self, **{name: value for name, value in options.items() if name in names})

        # Here, and not above, because these imports take seconds and listing the methods should not.
        from sentence_transformers import SentenceTransformer

        from .. import backbones
        from ..modules import Decoder, Pooling

        loading = {key: options[key] for key in ("dtype", "attn_implementation") if key in options}
        decoder = Decoder(
            backbones.load_decoder(backbone, **loading),
            backbones.load_tokenizer(backbone),
            attention=chain.attention,
            template=chain.template,
            max_length=chain.max_length,
        )
        pooling = Pooling(chain.pooling, decoder.get_embedding_dimension())
        return SentenceTransformer(
            modules=[decoder, pooling], device=options.get("device"), similarity_fn_name="cosine"
        )
