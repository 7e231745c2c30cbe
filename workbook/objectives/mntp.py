"""Masked next-token prediction: a decoder learns to use the tokens to the right of a token."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from ..errors import InvalidValueError, UnknownNameError
from .head import IGNORED, LMHeadObjective, LMHeadOptions, next_token_loss, predictable

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

STYLES = {"bert": (0.8, 0.1), "roberta": (1.0, 0.0)}
"""Shares of the chosen tokens that become the mask token and a random token; the others stay as they are."""
_SHARE = "a share of the tokens, more than 0 and less than 1"


class MNTPOptions(LMHeadOptions):
    """Options of :class:`MNTP`. The released code trains an untied head without saying so.

    Attributes:
        rate: Probability that a token is chosen, between 0 and 1.
        style: ``bert`` (of the chosen tokens 80% are masked, 10% replaced at random, 10% left) or ``roberta`` (all are
            masked).
        mask_token: An entry of the vocabulary; decoders have no mask token of their own.
    """

    rate: Annotated[float, Field(gt=0, lt=1, description=_SHARE)] = 0.2
    style: Annotated[Literal["bert", "roberta"], Field(description="masking style")] = "bert"
    mask_token: Annotated[str, Field(description="an entry of the vocabulary")] = "_"


class MNTP(LMHeadObjective):
    """Masked next-token prediction: some tokens are masked, and each is predicted from the state one to its left.

    Only tokens of the text itself are masked: never padding, special tokens or the instruction, and never the first
    token, which has no state to its left. Only masked positions go through the language-model head, so that logits are
    (masked, vocabulary), not (batch, tokens, vocabulary).

    The mask is drawn on the CPU, by default from torch's global generator, which a trainer seeds and saves in its
    checkpoints. A batch in which nothing was masked has the loss 0.

    Args:
        model: A chain that begins with a Decoder.
        head: The language-model head; see :class:`~.head.LMHeadObjective`.
        generator: A CPU generator, if masks should not depend on torch's global one.
        **options: Fields of :class:`MNTPOptions`.

    Raises:
        InvalidValueError: A rate that is not between 0 and 1, a mask token that is not in the vocabulary, or as
            :class:`~.head.LMHeadObjective`.
        UnknownNameError: No such option or style, or as :class:`~.head.LMHeadObjective`.
        ModelNotFoundError: As :class:`~.head.LMHeadObjective`.

    Source: LLM2Vec, section 2.1; rates and styles per backbone, appendix D.1.1 (``bert`` with 0.2 for S-LLaMA-1.3B,
    LLaMA-2-7B and Meta-LLaMA-3-8B, ``roberta`` with 0.8 for Mistral-7B); the underscore, section 2.2.
    """

    name = "mntp"
    reads = "chunks"
    Options = MNTPOptions

    def __init__(
        self,
        model: SentenceTransformer,
        head: nn.Linear | None = None,
        *,
        generator: torch.Generator | None = None,
        **options: Any,
    ):
        super().__init__(model, head, **options)
        tokenizer, mask_token = model[0].tokenizer, self.options.mask_token
        if mask_token not in tokenizer.get_vocab():
            raise InvalidValueError(
                "mask_token", "an entry of the vocabulary", mask_token, "Name a token that texts seldom hold."
            )
        self.generator = generator
        self._mask_token_id = tokenizer.convert_tokens_to_ids(mask_token)
        self._vocabulary = len(tokenizer)
        added = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        special = torch.tensor(sorted(added | set(tokenizer.all_special_ids)), dtype=torch.long, device=model.device)
        self.register_buffer("_special", special, persistent=False)

    def forward(
        self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The loss of one batch of texts, a float32 scalar.

        Args:
            sentence_features: One output of ``model.preprocess``.
            labels: Not used; the texts are their own labels.

        Raises:
            InvalidValueError: More or fewer columns than one.
        """
        columns = list(sentence_features)
        self.check_batch(0, len(columns))
        ids, targets = mask_tokens(
            columns[0]["input_ids"],
            self.maskable(columns[0]),
            mask_token_id=self._mask_token_id,
            vocabulary=self._vocabulary,
            rate=self.options.rate,
            style=self.options.style,
            generator=self.generator,
        )
        # Through the whole model, not its decoder alone: only then does a distributed wrapper synchronise gradients.
        states = self.model({**columns[0], "input_ids": ids})["token_embeddings"]
        return next_token_loss(states, targets, *self.projection())

    def maskable(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        """Mask of the tokens that may be hidden, bool (batch, tokens): tokens of the text, but for special ones, with a
        real token to their left."""
        return predictable(features) & ~torch.isin(features["input_ids"], self._special)


def mask_tokens(
    input_ids: torch.Tensor,
    maskable: torch.Tensor,
    *,
    mask_token_id: int,
    vocabulary: int,
    rate: float = 0.2,
    style: str = "bert",
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose tokens at random, hide them, and keep them as labels.

    Args:
        input_ids: int64 (batch, tokens).
        maskable: bool (batch, tokens), True where a token may be chosen.
        mask_token_id: Id that hides a token.
        vocabulary: Size of the vocabulary: random tokens are drawn from the ids below it.
        rate: Probability that a maskable token is chosen, between 0 and 1.
        style: A name from :data:`STYLES`.
        generator: A CPU generator; torch's global one if not given.

    Returns:
        Ids with the chosen tokens hidden, and labels: the original id of a chosen token, :data:`IGNORED` elsewhere;
        both int64 (batch, tokens). A row with nothing maskable comes back as it was.

    Raises:
        InvalidValueError: rate is not between 0 and 1.
        UnknownNameError: No such style.

    Source: LLM2Vec, appendix D.1.1, after Devlin et al. (2019) and Liu et al. (2019).
    """
    _check(rate, style)
    masked, random = STYLES[style]
    # On the CPU whatever the device, so that a seed means the same masks everywhere.
    draw, fate = torch.rand(2, *input_ids.shape, generator=generator).to(input_ids.device)
    others = torch.randint(vocabulary, input_ids.shape, generator=generator).to(input_ids.device)
    chosen = maskable & (draw < rate)
    hidden = torch.where(fate < masked, mask_token_id, torch.where(fate < masked + random, others, input_ids))
    return torch.where(chosen, hidden, input_ids), torch.where(chosen, input_ids, IGNORED)


def _check(rate: float, style: str) -> None:
    if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < rate < 1:
        raise InvalidValueError("rate", _SHARE, rate)
    if style not in STYLES:
        raise UnknownNameError("masking style", style, STYLES)
