"""Building a decoder with contextual tokens, and the length at which they begin."""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any

import torch
from sentence_transformers.base.modules import Transformer
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from .. import backbones
from ..corpora.authored import graded
from ..errors import DamagedFileError, InvalidValueError, MissingDataError, whole
from .contextual import ContextualDecoder, ContextualTokens

LENGTHS = ("word", "torch")
"""Names of the lengths at which a contextual token begins; see :func:`contextual_decoder`."""

LIKE_WORDS = (0.5, 3.0)
"""Lengths of a contextual token, by the mean length of a word embedding, outside of which build and load warn."""

_DEFAULT = 512  # tokens that a decoder reads unless a build asks for others, which MiniLM with its 256 does not
_FEW = 8  # paragraphs that are read when a model is loaded: half a second on a core, and within some per cent of 64


def contextual_decoder(
    decoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    encoder: str,
    *,
    tokens: int = 1,
    pretrained: bool = True,
    layers: int | None = None,
    length: str | float = "word",
    **options: Any,
) -> ContextualDecoder:
    """A decoder with an encoder by name, which takes the decoder's dtype and device.

    The contextual token begins as long as a word: W2 of equation 1 is scaled once, so that over 64 fixed paragraphs the
    mean length of C is that of the decoder's word embeddings. The scaling is this project's; equation 1 is as it was,
    and training may change the length. With torch's initialisation alone C has whatever length the encoder's states
    give it. Far shorter than a word, and with nothing but BOS in front, it can become a second attention sink. The mean
    of more states is shorter: of a paragraph C has half the length that it has of a sentence, so that paragraphs set
    the scale.

    Args:
        decoder: See :class:`ContextualDecoder`.
        tokenizer: The decoder's.
        encoder: See :func:`~workbook.backbones.load_encoder`; its pooling is not used.
        tokens: Number of contextual tokens.
        pretrained: False for the same architecture with random initialisation, as a control.
        layers: Number of the encoder's layers that run, from 0 (its embeddings alone); None for all.
        length: Length at which C begins: ``word``, that of a word embedding; a positive number, times that; or
            ``torch``, as the linear layers of torch are initialised. Outside of :data:`LIKE_WORDS` a warning says so.
        **options: The other options of :class:`ContextualDecoder`.

    Raises:
        UnknownNameError, ModelNotFoundError: No such encoder.
        InvalidValueError: An encoder that is not a transformer, or has fewer layers; a length that is none of these; a
            ``max_length`` that is more than the default and than the encoder reads; or as :class:`ContextualDecoder`.
        AttentionError: As :class:`ContextualDecoder`.
        MissingDataError: The authored texts are not there.
    """
    named = isinstance(length, str) and length in LENGTHS
    number = isinstance(length, int | float) and not isinstance(length, bool) and 0 < length < math.inf
    if not (named or number):
        raise InvalidValueError("length", f"{', '.join(LENGTHS)}, or a positive number of word lengths", length)
    cut = {}
    if layers is not None:
        most = backbones.load_config(encoder).num_hidden_layers
        cut = {"config_kwargs": {"num_hidden_layers": whole("layers", layers, 0, most, of="layers of the encoder")}}
    loaded = backbones.load_encoder(encoder, device=str(decoder.device), model_kwargs={"dtype": decoder.dtype}, **cut)
    first = loaded[0]
    if not isinstance(first, Transformer):
        raise InvalidValueError("encoder", "a transformer, which has states to read", type(first).__name__)
    model, width = first.model, decoder.config.hidden_size
    if not pretrained:
        model = AutoModel.from_config(model.config, dtype=decoder.dtype).to(decoder.device)
    context = ContextualTokens(model.config.hidden_size, width, tokens, model.config.num_attention_heads)
    made = ContextualDecoder(decoder, tokenizer, model.eval(), first.tokenizer, context.to(decoder.device), **options)
    read = made.encoder_tokenizer.model_max_length
    if made.max_length > max(_DEFAULT, read):
        hint = f"The encoder reads {read}: of a longer text C would not know the end. Name an encoder that reads more."
        raise InvalidValueError("max_length", f"at most {max(_DEFAULT, read)} tokens", made.max_length, hint)
    found = context_length(made)
    if length != "torch":
        wanted = 1.0 if length == "word" else float(length)
        with torch.no_grad():
            context.mlp[2].weight *= wanted / found
        found = wanted
    _warn_if_far(found, "begins", 'encoder_options={"length": "word"} scales it.')
    return made


def check_loaded(module: ContextualDecoder) -> None:
    """Warn if the contextual token of a saved model is far from a word's length, as it was built or as it was trained.

    Nothing is changed: a length that training chose is part of the model. On the meta device, and where the authored
    texts are not there, nothing is measured: a model loads without them.

    Args:
        module: A decoder that reads contextual tokens.
    """
    if module.encoder.device.type == "meta":
        return
    with contextlib.suppress(MissingDataError, DamagedFileError):
        hint = "workbook.probes.contextual_norms says in which texts it is a sink."
        _warn_if_far(context_length(module, _FEW), "of this model is", hint)


def _warn_if_far(found: float, verb: str, hint: str) -> None:
    shortest, longest = LIKE_WORDS
    if not shortest <= found <= longest:
        warnings.warn(
            f"The contextual token {verb} {found:.2f} times as long as a word embedding of the decoder, expected "
            f"{shortest} to {longest}. A short one can become a second attention sink, a long one drowns the words. "
            f"{hint}",
            stacklevel=3,
        )


@torch.no_grad()
def context_length(module: ContextualDecoder, paragraphs: int | None = None) -> float:
    """Mean length of the contextual tokens of 64 fixed paragraphs, by the mean length of the decoder's word embeddings.

    The paragraphs are the authored graded sentences, each with the five that are graded against it: some 90 words.

    Both are taken where the decoder's table is read. Where a decoder scales word embeddings (Gemma), it scales the
    contextual token by the same number, which cancels.

    Args:
        module: A decoder that reads contextual tokens.
        paragraphs: Number of paragraphs, the first ones; None for all.

    Raises:
        MissingDataError: The authored texts are not there.
    """
    sentences = graded().groupby("source", sort=False)  # of no task: they are there to be trained on
    texts = [" ".join([group["sentence1"].iloc[0], *group["sentence2"]]) for _, group in sentences]
    texts = texts[:paragraphs]
    own = module.encoder_tokenizer(texts, truncation=True, padding=True, return_tensors="pt")
    made = module.read_ahead(own.to(module.encoder.device))
    return float(made.float().norm(dim=-1).mean()) / word_length(module.decoder)


@torch.no_grad()
def word_length(decoder: PreTrainedModel) -> float:
    """Mean length of a decoder's word embeddings, as they stand in its table.

    Args:
        decoder: A transformers decoder.
    """
    return float(decoder.get_input_embeddings().weight.float().norm(dim=1).mean())
