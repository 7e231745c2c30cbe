"""Reconstruction: the vector of one side of a pair has to hold what the other side says.

In Anchor the language model writes the other side, with the vector in place of its first word. In LLaMA2Vec the head
reads the words from the vector itself; it is here for comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from ..errors import InvalidValueError
from ..modules.projection import token_losses
from .head import LMHeadObjective, LMHeadOptions

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SIDES = ("query", "positive")
"""Columns of the data, in their order."""


class PairObjective(LMHeadObjective):
    """An objective on pairs in which the vector of each side has to predict tokens of a text.

    The vector is the chain's own, with its gradient: for last-token pooling the state of the last pooled token after
    the final norm, be it EOS or the last token of another suffix. The tokens of a text are those of its own that are
    pooled, without instruction, BOS, suffix and padding. So an instruction is read when the vector of a side is
    computed; it is never predicted, nor read when predicting.

    A text longer than the model's ``max_length`` is cut as everywhere, and the rest is not predicted.

    Args:
        model: A chain that begins with a causal Decoder, and whose vectors are as wide as its states.
        head: The language-model head; see :class:`~.head.LMHeadObjective`. One that trains is lost with the objective,
            and without the head it was trained with, what a vector can write is not known.
        **options: Fields of the objective's ``Options``.

    Raises:
        InvalidValueError: A decoder with another attention or with contextual tokens, vectors of another width, or as
            :class:`~.head.LMHeadObjective`.
        UnknownNameError, ModelNotFoundError: As :class:`~.head.LMHeadObjective`.
    """

    attention = "causal"  # a decoder that sees what follows need not predict it

    def __init__(self, model: SentenceTransformer, head: nn.Linear | None = None, **options: Any):
        super().__init__(model, head, **options)
        module = model[0]
        width, states = model.get_embedding_dimension(), module.get_embedding_dimension()
        if width != states or module.contextual_tokens:
            got = "contextual tokens" if module.contextual_tokens else f"vectors of {width}"
            raise InvalidValueError(
                "model", f"one whose vector can stand for a word: of {states} numbers, made by the decoder alone", got
            )

    def check_batch(self, rows: int, columns: int) -> None:
        """Refuse data that are not pairs; see :meth:`~.base.Objective.check_batch`.

        Raises:
            InvalidValueError: More or fewer columns than two.
        """
        if columns != len(SIDES):
            raise InvalidValueError("training data", "a query and a positive", f"{columns} columns", "Keep these two.")

    def texts(self, side: dict[str, torch.Tensor], name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens of one side's texts, packed to the left, whichever side the padding is on.

        Args:
            side: Output of ``model.preprocess``, (batch, tokens).
            name: Name of the side, for the error.

        Returns:
            Ids, int64 (batch, longest text), and the mask of those that belong to a text, bool of the same shape.

        Raises:
            InvalidValueError: A text without any token; the message names side and row.
        """
        return _packed(side["input_ids"], self.where(side, name))

    def where(self, side: dict[str, torch.Tensor], name: str) -> torch.Tensor:
        """Mask of the tokens of one side's texts, as they are laid out, bool (batch, tokens).

        Args:
            side, name: See :meth:`texts`.

        Raises:
            InvalidValueError: A text without any token; the message names side and row.
        """
        module = self.decoder_module
        ids, pooled = side["input_ids"], side.get("pooling_mask", side["attention_mask"]).bool()
        order = pooled.cumsum(dim=1)
        own = pooled & (order <= order[:, -1:] - int(module.closes))
        # A text without any token is laid out as one EOS.
        words = own & (ids != module.tokenizer.eos_token_id)
        if (empty := (~words.any(dim=1)).nonzero()).numel():
            raise InvalidValueError(
                name, "a text in every row", f"none in row {int(empty[0])}", "Drop the pairs of which a side is empty."
            )
        return own


class ReconstructionOptions(LMHeadOptions):
    """Options of :class:`Reconstruction`.

    Attributes:
        alpha: Weight of the direction from query to document, 0 to 1.
        target: The part of the other side that is written. ``text``: its text alone, so that no instruction is written
            or read. ``input``: also BOS and the instruction in front of the text. ``released``: as the released code
            does, see :class:`Reconstruction`.
    """

    alpha: Annotated[float, Field(ge=0, le=1, description="a weight, at least 0 and at most 1")] = 0.2
    target: Annotated[Literal["text", "input", "released"], Field(description="target of reconstruction")] = "text"


class Reconstruction(PairObjective):
    """Bidirectional reconstruction: from the vector of a query its document is written (EBQ2D), and back (EBD2Q).

    The decoder reads the vector in place of the first word, then the words of the other side, and predicts each of
    these from all before it (teacher forcing). In every row the words follow the vector directly: all padding is moved
    behind them and is not read. EOS is not predicted, neither in the paper's sums nor in the released code.

    The state of the first position in a row is much the same whatever token is there, so that a vector in that place
    may hardly be read. With ``Decoder.vector_behind_bos``, BOS comes first and the vector after it.

    The loss is alpha * Q2D + (1 - alpha) * D2Q, each the mean over all predicted tokens of the batch. At alpha 0 or 1
    the other direction is not computed. Memory is bounded: logits are computed for some positions at a time.

    Args:
        model, head: See :class:`PairObjective`.
        **options: Fields of :class:`ReconstructionOptions`.

    Raises:
        InvalidValueError: An alpha outside its range, or as :class:`PairObjective`.
        UnknownNameError: No such option or target, or as :class:`PairObjective`.
        ModelNotFoundError: As :class:`PairObjective`.

    Source: Anchor, section 3.2, algorithm 1, equations 3 to 5. The equations sum over the tokens of a pair; algorithm 1
    has a cross-entropy, which in the released code is the mean over the batch. That code pads on the left, between the
    vector and the words, and counts the padding in positions. It hides the instruction and BOS from the decoder, and
    yet predicts them, like everything but EOS. ``target="released"`` does all of that; the other targets do none of it.
    """

    name = "reconstruction"
    Options = ReconstructionOptions

    def forward(
        self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The loss of one batch of pairs, a float32 scalar.

        Args:
            sentence_features: Outputs of ``model.preprocess`` for the queries and for the documents.
            labels: Not used; the texts are their own labels.

        Raises:
            InvalidValueError: More or fewer columns than two, or a side without a text; the message names the row.
        """
        given = list(sentence_features)
        self.check_batch(0, len(given))
        alpha = self.options.alpha
        directions = zip((alpha, 1 - alpha), given, given[::-1], SIDES[::-1], strict=True)
        chosen = [direction for direction in directions if direction[0]]
        vectors = self.embedded([source for _, source, _, _ in chosen])
        return sum(
            weight * _mean(*self.losses(made, target, name))
            for made, (weight, _, target, name) in zip(vectors, chosen, strict=True)
        )

    def losses(
        self, vectors: torch.Tensor, target: dict[str, torch.Tensor], name: str = SIDES[1]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of writing texts from vectors, token by token.

        Args:
            vectors: (batch, dim), any floating dtype.
            target: Output of ``model.preprocess`` for the texts, (batch, tokens).
            name: Name of the texts, for the error.

        Returns:
            Minus the log-probability of each token in nats, float32 (batch, longest text), 0 where no token is written;
            and the mask of written tokens, bool of the same shape.

        Raises:
            InvalidValueError: A text without any token.
        """
        ids, own, visible = self._laid_out(target, name)
        front = self.in_front(vectors)
        read = torch.cat([front, self.decoder_module.decoder.get_input_embeddings()(ids[:, :-1])], dim=1)
        mask = torch.cat([own.new_ones(front.shape[:2]), visible], dim=1).long()
        features = {"inputs_embeds": read, "attention_mask": mask}
        if self.options.target == "released":
            features["position_ids"] = torch.arange(read.shape[1], device=read.device).expand(len(read), -1)
        # Through the whole model, not its decoder alone: only then does a distributed wrapper synchronise gradients.
        states = self.model(features)["token_embeddings"]
        states = states[:, front.shape[1] - 1 :]  # that of the vector predicts the first word
        made = token_losses(states[own], ids[own].unsqueeze(1), *self.projection())
        return made.new_zeros(ids.shape).masked_scatter(own, made), own

    def _laid_out(self, side: dict[str, torch.Tensor], name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids behind the vector, the mask of those that are written, and of those, but the last, that are read."""
        ids, own, real = side["input_ids"], self.where(side, name), side["attention_mask"].bool()
        if self.options.target == "released":
            columns = real.int().argsort(dim=1, stable=True)  # padding in front
            text = side.get("pooling_mask", side["attention_mask"]).bool()
            ids, text, real = (values.gather(1, columns) for values in (ids, text, real))
            return ids, real & (ids != self.decoder_module.tokenizer.eos_token_id), text[:, :-1]
        if self.options.target == "input":
            own = real & (own.flip(1).cumsum(dim=1).flip(1) > 0)  # up to the last token of the text
        ids, own = _packed(ids, own)
        return ids, own, own[:, 1:]

    def in_front(self, vectors: torch.Tensor) -> torch.Tensor:
        """The embeddings that the decoder reads in front of the words, (batch, 1 or 2, dim).

        They are the vector alone, or BOS and the vector where the model reads vectors behind BOS and has one.

        Args:
            vectors: (batch, dim), any floating dtype; the embeddings have the decoder's.
        """
        table = self.decoder_module.decoder.get_input_embeddings()
        front = vectors.to(table.weight.dtype).unsqueeze(1)
        bos = self.decoder_module.tokenizer.bos_token_id
        if not self.decoder_module.vector_behind_bos or bos is None:
            return front
        ids = torch.full((len(vectors), 1), bos, device=vectors.device)
        return torch.cat([table(ids), front], dim=1)


class LLaMA2Vec(PairObjective):
    """Reconstruction as in LLaMA2Vec: from a vector the head predicts, in one step, which tokens a text holds.

    Each side's vector has two targets: the tokens of its own text, and those of the other side. LLaMA2Vec learns from
    running text, where the second target is the next sentence; in a pair, the other side is closest to that. There two
    prompts give two vectors, one per target; here the model's one vector has both.

    The loss of a target is the mean over the distinct tokens of the text, without order. The loss of a batch is the
    mean over texts and targets.

    See :class:`PairObjective` for arguments and errors.

    Source: Anchor, appendix E.1, after Li et al. (2024).
    """

    name = "llama2vec"

    def forward(
        self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The loss of one batch of pairs, a float32 scalar; see :meth:`Reconstruction.forward`."""
        given = list(sentence_features)
        self.check_batch(0, len(given))
        (query, _), (document, _) = targets = [_once(*self.texts(*side)) for side in zip(given, SIDES, strict=True)]
        ids = torch.cat([query, document], dim=1)
        losses = torch.stack([token_losses(made, ids, *self.projection()) for made in self.embedded(given)])
        parts = losses.split([query.shape[1], document.shape[1]], dim=2)
        return torch.stack([_of_rows(part, first) for part, (_, first) in zip(parts, targets, strict=True)]).mean()


def _packed(ids: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens packed to the left, and the mask of them."""
    columns = own.int().argsort(dim=1, descending=True, stable=True)[:, : int(own.sum(dim=1).max())]
    return ids.gather(1, columns), own.gather(1, columns)


def _once(ids: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of each text, and the mask of those that stand there for the first time."""
    same = (ids.unsqueeze(1) == ids.unsqueeze(2)) & own.unsqueeze(1)
    return ids, own & ~same.tril(diagonal=-1).any(dim=2)


def _mean(losses: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    return losses.sum() / where.sum()


def _of_rows(losses: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """The mean of each row over the positions that count, (.., batch)."""
    return torch.where(where, losses, 0).sum(dim=-1) / where.sum(dim=-1)
