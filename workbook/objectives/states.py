"""Distillation of states: a compressed model learns from labels, and from the states of the model it was made from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn.functional import mse_loss, rms_norm

from ..errors import InvalidValueError
from ..precision import without_autocast
from .base import joined
from .contrastive import Contrastive, ContrastiveOptions

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedModel

    from ..modules import Decoder


class StateDistillationOptions(ContrastiveOptions):
    """Options of :class:`StateDistillation`.

    Attributes:
        alpha: Weight of the states' loss, where the contrastive one has 1. The paper prints none.
        scaled: Whether each token's states are divided by their root mean square first, as the next layer reads them.
            The paper does not.
    """

    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False, description="a number, at least 0")] = 1.0
    scaled: Annotated[bool, Field(description="True or False")] = False

    @model_validator(mode="after")
    def _states_are_of_one_pass(self) -> StateDistillationOptions:
        if self.mini_batch_size is not None:
            raise InvalidValueError(
                "mini_batch_size", "None, since states are compared in one pass", self.mini_batch_size, "Accumulate."
            )
        return self


class StateDistillation(Contrastive):
    r"""InfoNCE, plus the mean squared error of the student's states and those of a teacher, layer by layer.

    The paper prints L_total = L_contrastive + alpha * L_kd with

        L_kd = sum_{n=1}^{O-2} MSE(S_s^n, S_t^n) + MSE(S_s^{O-1}, S_t^O),

    where O is "the number of layers", S_s a state of the student, the compressed model, and S_t one of the teacher, the
    model before compression. The student has no latent attention block; the teacher has.

    How it is read here: O counts the decoder's layers and the latent block as one more. So the student's output state,
    what its pooling averages, learns S_t^O, the output of the teacher's latent block, and does without the block; every
    layer before the decoder's last learns the teacher's. A teacher without such a block has its output state there, and
    the sum is the same. Both output states are those after the decoder's last norm, the others are the residual stream
    after a layer, without it.

    What the paper leaves open: whether O counts the decoder's layers alone, which would leave its last but one state
    without a teacher; whether S_t^O is meant of each token, as here, or of the vector after pooling; over which tokens
    the mean is, here all that are not padding; and alpha. The sum grows with the number of layers and with the square
    of the states. Many decoders have a few features in the first token a hundred times larger than all others (Sun et
    al. 2024, "Massive activations in large language models"), and as printed the loss is about little else; with
    ``scaled`` every token counts alike.

    Args:
        model: The student, a chain that begins with a Decoder.
        teacher: The teacher, with as many layers of the same width; it reads what the student reads, and learns
            nothing.
        **options: Of :class:`StateDistillationOptions`.

    Raises:
        InvalidValueError: As :class:`~.contrastive.Contrastive`; no teacher, or one of another size; or GradCache.

    Source: NV-Embed, appendix A.2.
    """

    name = "state-distillation"
    teacher = False
    states = True
    Options = StateDistillationOptions

    def __init__(self, model: SentenceTransformer, teacher: SentenceTransformer | None = None, **options: Any):
        super().__init__(model, **options)
        if teacher is None:
            raise InvalidValueError("teacher", "the model whose states are learnt", "none", "train(.., teacher=model)")
        sizes = [_size(one) for one in (model, teacher)]
        if None in sizes or sizes[0] != sizes[1]:
            raise InvalidValueError(
                "teacher", "a chain that begins with a Decoder, with the layers and the width of the student's", sizes
            )
        # In tuples, so that the teacher's weights are none of the loss's own, and the student's stay where they are
        # when a trainer wraps the model.
        self._teachers, self._students = (teacher.eval(),), (model[0],)
        self._last = torch.zeros(())

    def forward(
        self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The loss of one batch, a scalar; see :meth:`.contrastive.Contrastive.forward`."""
        loss = super().forward(sentence_features, labels)
        return loss + self.options.alpha * self._last

    def embedded(self, columns: Sequence[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
        """The vectors of each column; the loss of the states is taken from the same pass.

        Args:
            columns: Outputs of ``model.preprocess``.
        """
        (student,), (teacher,) = self._students, self._teachers
        features = joined(columns)
        with torch.no_grad(), layer_states(teacher[0]) as theirs:
            taught = teacher[0](dict(features))
            target = taught["token_embeddings"]
            if hasattr(teacher[1], "read"):  # the tokens behind a latent block
                target = teacher[1].read(target, taught["attention_mask"])
        with layer_states(student) as ours:
            made = self.model(dict(features))
        with without_autocast(target.device):
            real = features["attention_mask"].bool()
            own, other = [*_by_layer(ours), made["token_embeddings"][real]], [*_by_layer(theirs), target[real]]
            self._last = torch.stack([*map(self._squared_error, own, other)]).sum()
        return list(made["sentence_embedding"].split([len(column["attention_mask"]) for column in columns]))

    def _squared_error(self, own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Mean squared error of the states (tokens, dim) of one layer, a float32 scalar."""
        own, other = own.float(), other.float()
        if self.options.scaled:
            own, other = (rms_norm(states, states.shape[-1:]) for states in (own, other))
        return mse_loss(own, other)


@contextlib.contextmanager
def layer_states(module: Decoder) -> Iterator[list[list[torch.Tensor]]]:
    """Collect the states after every layer but the last, of the passes in the block.

    Args:
        module: A Decoder, with or without adapters.

    Yields:
        By pass, the states by layer, each (tokens, dim), of tokens that are not padding.
    """
    passes: list[list[torch.Tensor]] = []
    masks: list[torch.Tensor | None] = []

    def begins(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        masks.append(given.get("attention_mask"))
        passes.append([])

    def layer(_: nn.Module, args: tuple[Any, ...], output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        states = output if isinstance(output, torch.Tensor) else output[0]
        passes[-1].append(states.flatten(0, 1) if masks[-1] is None else states[masks[-1].bool()])

    hooks = [module.decoder.register_forward_pre_hook(begins, with_kwargs=True)]
    hooks += [one.register_forward_hook(layer) for one in module.decoder.layers[:-1]]
    try:
        yield passes
    finally:  # checkpointed layers run again in the backward pass, when nobody collects
        for hook in hooks:
            hook.remove()


def _by_layer(passes: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """The states of all passes, (tokens, dim), by layer."""
    return [torch.cat(parts) for parts in zip(*passes, strict=True)]


def _size(model: SentenceTransformer) -> tuple[int, int] | None:
    """Number of layers and width of a decoder; None for another model."""
    decoder: PreTrainedModel | None = getattr(model[0], "decoder", None)
    return None if decoder is None else (len(decoder.layers), decoder.config.hidden_size)
