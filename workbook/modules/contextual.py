"""The contextual token: a small bidirectional encoder turns a text into a token that the causal decoder reads first."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from sentence_transformers.base.modules.module import Module
from torch import nn
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from .. import attention as attention_modes
from .. import backbones
from ..checksums import verify_checksums, write_checksums
from ..errors import AttentionError, InvalidValueError, UnknownNameError, whole
from ..files import writing
from ..templates import CONTEXT
from .decoder import Decoder
from .passes import in_groups
from .pooling import pool
from .saving import SavedModule

REPRESENTATIONS = {
    "concat": ("context", "eos"),
    "eos": ("eos",),
    "context": ("context",),
    "encoder": ("encoder",),
    "bi-eos": ("encoder", "eos"),
}
"""The parts that are concatenated into the vector; see :class:`ContextualPooling`."""
_OWN = "encoder."  # begins the names of the encoder's features: with _ the trainer would take them for a column


class ContextualTokens(SavedModule):
    """Maps an encoder's states to tokens in a decoder's word-embedding space.

    One token is C = W2 gelu(W1 h), where h is the mean of the encoder's states. Several tokens come from trained
    queries, through one layer of cross-attention with as many heads as the encoder, and the same MLP. The MLP has no
    biases, as in the equation, and its gelu is exact. The paper does not give the initialisation: the linear layers
    have torch's, as in LLaVA, which the paper follows, and :func:`~.context_length.contextual_decoder` may scale W2.
    Weights are float32, whatever the dtype of decoder and encoder.

    Args:
        encoder_dimension: Width k of the encoder's states.
        embedding_dimension: Width d of the decoder's word embeddings.
        tokens: Number of contextual tokens.
        heads: Number of heads of the cross-attention; does not matter for one token.

    Raises:
        InvalidValueError: A number of tokens that is not a positive whole one.

    Source: Causal2Vec, section 3.1 and equation 1; several tokens, section 4.5.4, whose layers the paper leaves open.
    """

    config_keys = ("encoder_dimension", "embedding_dimension", "tokens", "heads")

    def __init__(self, encoder_dimension: int, embedding_dimension: int, tokens: int = 1, heads: int = 1):
        super().__init__()
        self.encoder_dimension, self.embedding_dimension = encoder_dimension, embedding_dimension
        self.tokens, self.heads = whole("tokens", tokens, of="contextual tokens"), heads
        self.mlp = nn.Sequential(
            nn.Linear(encoder_dimension, embedding_dimension, bias=False),
            nn.GELU(),
            nn.Linear(embedding_dimension, embedding_dimension, bias=False),
        )
        if tokens > 1:
            self.queries = nn.Parameter(torch.randn(tokens, encoder_dimension))
            self.attention = nn.MultiheadAttention(encoder_dimension, heads, batch_first=True)

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``context`` (batch, tokens, d) to the features; see ``Module.forward``.

        Args:
            features: ``token_embeddings`` (batch, words, k) and ``attention_mask`` (batch, words) of the encoder.
            **kwargs: Ignored.
        """
        dtype = self.mlp[0].weight.dtype
        states, mask = features["token_embeddings"].to(dtype), features["attention_mask"]
        if self.tokens == 1:
            read = pool(states, mask, "mean").unsqueeze(1).to(dtype)
        else:
            queries = self.queries.expand(len(states), -1, -1)
            read, _ = self.attention(queries, states, states, key_padding_mask=mask == 0, need_weights=False)
        features["context"] = self.mlp(read)
        return features


class ContextualDecoder(Decoder):
    """A decoder that reads contextual tokens in front of a text, so that every token sees the whole text causally.

    The encoder reads the text with its own special tokens and without an instruction. Its states become contextual
    tokens, which the decoder reads as word embeddings where its template has ``{context}``. The decoder's weights and
    attention do not change. Where word embeddings are scaled (Gemma), the contextual token is scaled too, like a row of
    their table.

    The encoder is frozen, and its dropout off, unless it is ``trainable``: then it trains as the decoder does, with
    adapters of its own or as a whole. It reads at most ``max_length`` of its own tokens, and warns once when it cuts a
    text of which the decoder reads more. A text of which its tokenizer keeps nothing gets the token of an empty text.

    Args:
        decoder: See :class:`Decoder`.
        tokenizer: The decoder's.
        encoder: A bidirectional transformer; this is measured, once per process for encoders of one kind.
        encoder_tokenizer: Its fast tokenizer, whose ``model_max_length`` is the longest input that it takes.
        context: Maps the encoder's states to the decoder's word embeddings.
        prefix: Text that the encoder reads in front of each text, such as ``"query: "`` for E5.
        sees_instruction: Whether the encoder reads the instruction, and a space, in front of the text.
        trainable: Whether the encoder trains.
        **layout: ``attention``, ``template``, ``max_length``, ``vector_behind_bos``
            and ``prefix_cache``; see :class:`Decoder`.

    Raises:
        AttentionError: The encoder is causal, or as :class:`Decoder`.
        UnknownNameError: As :class:`Decoder`.
        InvalidValueError: As :class:`Decoder`, or a template without a place for the contextual token.

    Source: Causal2Vec, sections 3.1 and 4.5, equation 2. The paper does not say whether the encoder reads the
    instruction, or the prefix that E5 was trained with.
    """

    config_keys = (*Decoder.config_keys, "prefix", "sees_instruction", "trainable")

    def __init__(
        self,
        decoder: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        encoder: PreTrainedModel,
        encoder_tokenizer: PreTrainedTokenizerBase,
        context: ContextualTokens,
        *,
        prefix: str = "",
        sees_instruction: bool = False,
        trainable: bool = False,
        **layout: Any,
    ):
        super().__init__(decoder, tokenizer, **layout)
        for form in ("instructed", "plain"):
            if [piece.string for piece in getattr(self._template, form)].count("{context}") != 1:
                raise InvalidValueError(
                    "template", f"{{context}} as one of its pieces, once, in its {form} form", layout.get("template"),
                    "The templates causal2vec and causal2vec-before have it.",
                )  # fmt: skip
        # Without layers, as of embeddings alone, no token sees another.
        measured = (
            attention_modes.measured_mode(encoder)
            if getattr(encoder.config, "num_hidden_layers", 1)
            else "bidirectional"
        )
        if measured != "bidirectional":
            raise AttentionError(
                f"encoder: expected bidirectional attention, measured {measured} in {encoder.config.name_or_path!r}. "
                "Each of its states would know no more than what stands before it: name an encoder, such as minilm."
            )
        self.encoder = encoder.requires_grad_(trainable)
        self.encoder_tokenizer = encoder_tokenizer
        self.context = context
        self.prefix, self.sees_instruction, self.trainable = prefix, sees_instruction, trainable
        self._told = False

    @property
    def adapted(self) -> tuple[str, ...]:
        """Attributes that hold the transformers that training adapts."""
        return ("decoder", "encoder") if self.trainable else ("decoder",)

    @property
    def contextual_tokens(self) -> int:
        """Number of tokens that ``{context}`` stands for in the template."""
        return self.context.tokens

    @contextmanager
    def context_last(self) -> Iterator[None]:
        """Have contextual tokens stand behind a text without an instruction in the block, in front of what closes it.

        A diagnostic: there they are read by the closing tokens alone, and the text by them. Nothing trains so, and a
        text with an instruction is laid out as ever.
        """
        own = self._template
        [context] = (piece for piece in own.plain if piece.string == "{context}")
        rest = [piece for piece in own.plain if piece is not context]
        behind = 1 + max(place for place, piece in enumerate(rest) if "{text}" in piece.string)
        self._template = own.with_(plain=(*rest[:behind], context, *rest[behind:]))
        try:
            yield
        finally:
            self._template = own

    def train(self, mode: bool = True) -> Self:
        """Switch to training mode, except a frozen encoder: with dropout its token would vary from pass to pass."""
        super().train(mode)
        if not self.trainable:
            self.encoder.eval()
        return self

    def preprocess(
        self, inputs: Sequence[str | dict[str, str]], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, torch.Tensor]:
        """Tokenize texts for the decoder and for the encoder; for arguments see :meth:`Decoder.preprocess`.

        Returns:
            The decoder's features; ``context_mask``, 1 at contextual tokens; and the encoder's own, such as
            ``encoder.input_ids``: int64 (batch, tokens), each padded for its own model.

        Raises:
            InvalidValueError: As :meth:`Decoder.preprocess`, or rows of token ids.
        """
        features = super().preprocess(inputs, prompt, **kwargs)
        features["context_mask"] = (features["input_ids"] == CONTEXT).long()
        if any(isinstance(row, list) for row in inputs):
            raise InvalidValueError("inputs", "texts, since an encoder of its own reads them too", "rows of token ids")
        rows = [(row["instruction"], row["text"]) if isinstance(row, dict) else (prompt, row) for row in inputs]
        seen = [(instruction or "").strip() if self.sees_instruction else "" for instruction, _ in rows]
        texts = [
            self.prefix + (f"{instruction} {text}" if instruction else text)
            for instruction, (_, text) in zip(seen, rows, strict=True)
        ]
        limit = min(self.max_length, self.encoder_tokenizer.model_max_length)
        own = self.encoder_tokenizer(texts, truncation=True, max_length=limit, padding=True, return_tensors="pt")
        if not self._told and any(one.overflowing for one in own.encodings):
            read = features["attention_mask"].sum(dim=1).tolist()  # a row that is full may have been cut itself
            cut = [tokens for one, tokens in zip(own.encodings, read, strict=True) if one.overflowing]
            if min(limit, *cut) < self.max_length:
                self._told = True
                warnings.warn(
                    f"The encoder reads the first {limit} of its tokens, the decoder {self.max_length} of its own: of "
                    "some text the contextual token does not know the end. Set max_length to what both read, or name "
                    "an encoder that reads more. (Said once.)",
                    stacklevel=2,
                )
        return features | {_OWN + name: value for name, value in own.items()}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``token_embeddings`` and ``context`` to the features; see :meth:`Decoder.forward`.

        ``context`` is (batch, contextual tokens, dim): the tokens as they go into the decoder, before any scaling.
        """
        features["context"] = self.context_of(features)
        return super().forward(features, **kwargs)

    def context_of(self, features: Mapping[str, Any]) -> torch.Tensor:
        """The contextual tokens of a batch, without a pass of the decoder.

        Args:
            features: Of :meth:`preprocess`.

        Returns:
            (batch, contextual tokens, dim), as they go into the decoder, before any scaling.
        """
        return self.read_ahead(
            {name.removeprefix(_OWN): value for name, value in features.items() if name.startswith(_OWN)}
        )

    def read_ahead(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The contextual tokens of texts, (batch, contextual tokens, dim), as they go into the decoder.

        Args:
            inputs: What the encoder's tokenizer makes of the texts.
        """
        own = dict(inputs)
        mask = own.pop("attention_mask")
        states = in_groups(self._encoded, own, mask)
        return self.context({"token_embeddings": states, "attention_mask": mask})["context"]

    def _encoded(self, inputs: dict[str, torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(**inputs, attention_mask=mask).last_hidden_state

    def _inputs(self, features: dict[str, Any]) -> dict[str, torch.Tensor]:
        table, place = self.decoder.get_input_embeddings(), features["context_mask"].bool()
        words = table(features["input_ids"].masked_fill(place, 0))
        # Gemma scales words as it looks them up, which the contextual token skips.
        context = features["context"] * getattr(table, "embed_scale", 1.0)
        return {"inputs_embeds": words.masked_scatter(place.unsqueeze(-1), context.to(words.dtype))}

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the decoder as :meth:`Decoder.save`, encoder and MLP into folders of their own, with their checksums.

        Raises:
            OutputError: The folder can't be written.
        """
        encoder, context = Path(output_path, "encoder"), Path(output_path, "context")
        with writing(Path(output_path)):
            for folder in (encoder, context):
                folder.mkdir(exist_ok=True)
            self.encoder.save_pretrained(encoder)
            self.encoder_tokenizer.save_pretrained(encoder)
            write_checksums(encoder)
        self.context.save(str(context))
        super().save(output_path, *args, **kwargs)

    @classmethod
    def _assembled(
        cls, folder: Path, decoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: dict[str, Any]
    ) -> Self:
        verify_checksums(folder / "encoder", "Save the model again, or copy it again from its source.")
        with backbones.loading(folder / "encoder"):
            encoder = backbones.from_folder(AutoModel, folder / "encoder", dtype=decoder.dtype)
        context = ContextualTokens.load(str(folder / "context"))
        encoder_tokenizer = backbones.load_tokenizer(str(folder / "encoder"))
        return cls(decoder, tokenizer, encoder.to(decoder.device), encoder_tokenizer, context, **config)


class ContextualPooling(Module):
    """The vector of contextual tokens and text: by default their last states, concatenated.

    ``concat`` is the mean of the contextual tokens' states (for one token, its state) followed by the state of the last
    pooled token, EOS. ``context`` and ``eos`` are one of the two alone. ``bi-eos`` has the contextual tokens as they
    come from the MLP, followed by the state of EOS; ``encoder`` is that first half alone.

    As in the paper nothing is scaled, so that the longer part weighs more in a cosine. With ``concat`` that is EOS, by
    a little; with ``bi-eos`` the state of EOS can be forty times as long as what comes from the MLP, and decides alone.
    ``equal_lengths`` gives the parts equal weight.

    Args:
        embedding_dimension: Width of the token states.
        representation: One of :data:`REPRESENTATIONS`.
        equal_lengths: Scale each part to length 1 before they are concatenated; a control, not in the paper.

    Raises:
        UnknownNameError: No such representation.

    Source: Causal2Vec, section 3.2; ``eos``, table 2; ``bi-eos``, appendix C.2 and table 10; lengths, appendix C.1. The
    paper does not say what is concatenated with several tokens; the mean keeps the vector's width.
    """

    config_keys = ("embedding_dimension", "representation", "equal_lengths")

    def __init__(self, embedding_dimension: int, *, representation: str = "concat", equal_lengths: bool = False):
        super().__init__()
        if representation not in REPRESENTATIONS:
            raise UnknownNameError("representation", representation, REPRESENTATIONS)
        self.embedding_dimension, self.representation = embedding_dimension, representation
        self.equal_lengths = equal_lengths

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``sentence_embedding``, float32 (batch, width), to the features; see ``Module.forward``.

        Args:
            features: Those of :class:`ContextualDecoder`, after its forward pass.
            **kwargs: Ignored.

        Raises:
            InvalidValueError: There are no contextual tokens.
        """
        if "context" not in features:
            raise InvalidValueError("contextual pooling", "a decoder that reads contextual tokens", "a plain one")
        made = {
            "context": lambda states: pool(states, features["context_mask"], "mean"),
            "eos": lambda states: pool(states, features["pooling_mask"], "last_token"),
            "encoder": lambda _: features["context"].float().mean(dim=1),
        }
        parts = [made[name](features["token_embeddings"]) for name in REPRESENTATIONS[self.representation]]
        if self.equal_lengths:
            parts = [nn.functional.normalize(part, dim=1) for part in parts]
        features["sentence_embedding"] = torch.cat(parts, dim=1)
        return features

    def get_embedding_dimension(self) -> int:
        """Width of the vector."""
        return len(REPRESENTATIONS[self.representation]) * self.embedding_dimension

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the configuration; there are no weights. See ``Module.save``."""
        self.save_config(output_path)
