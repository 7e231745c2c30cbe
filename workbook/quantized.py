"""Linear layers whose weights are stored in eight bits, and loading them through transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn
from torch.nn.functional import linear
from transformers import PreTrainedModel
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from .errors import InvalidValueError

FORMATS = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
"""Eight-bit forms of a weight by name: whole numbers from -127 to 127, and floats of 4 or 5 bits of exponent."""

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Names of the linear layers of a decoder's blocks."""

_METHOD = "workbook_rows"


class QuantizedLinear(nn.Module):
    """A linear layer with eight-bit weights and one scale for each of its rows, for inference.

    A weight is its stored value times the scale of its row, and becomes one of the input's dtype in each pass, so this
    saves memory, not time. The stored tensors have the names that compressed-tensors gives them. That package has of
    eight-bit floats E4M3 alone; torchao has all three forms, but rounds by itself, so that it can't keep what GPTQ
    chose, and its tensors are saved only by a model that transformers quantized as it loaded it.

    Args:
        weight: (rows, columns), of a dtype in :data:`FORMATS`.
        scale: float32 (rows, 1).
        bias: (rows,), or None.
    """

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor, bias: nn.Parameter | None = None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", scale)
        self.register_parameter("bias", bias)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weights as numbers, (rows, columns).

        Args:
            dtype: A floating-point dtype.
        """
        return (self.weight.to(torch.float32) * self.weight_scale).to(dtype)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Output (.., rows) of an input (.., columns), in its dtype."""
        return linear(states, self.dequantized(states.dtype), self.bias)

    def extra_repr(self) -> str:
        """Its sizes and dtype, for the printed model."""
        return f"{self.in_features}, {self.out_features}, {self.weight.dtype}, bias={self.bias is not None}"

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        stored = {name: value for name, value in self._buffers.items()}
        super()._apply(fn, recurse)
        for name, before in stored.items():  # another dtype is for what is computed, not for what is stored
            if self._buffers[name].dtype != before.dtype:
                self._buffers[name] = before.to(self._buffers[name].device)
        return self


def check_form(form: str, device: torch.device | str) -> None:
    """Refuse a form that the device can't store or read.

    Args:
        form: A name of :data:`FORMATS`.
        device: A torch device.

    Raises:
        InvalidValueError: It can't.
    """
    try:
        torch.zeros(1, device=device).to(FORMATS[form]).to(torch.float32)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidValueError(
            "form", f"one that the device {device} has", form, f"Put the model on another device. ({reason})"
        ) from error


def mark(decoder: PreTrainedModel, form: str) -> None:
    """Note in a decoder's configuration that its blocks are quantized, so that it is saved and loaded as it is.

    Args:
        decoder: A transformers decoder whose linear layers are :class:`QuantizedLinear`.
        form: A name of :data:`FORMATS`.
    """
    config = RowsConfig(form)
    decoder.config.quantization_config = config
    decoder.hf_quantizer = RowsQuantizer(config)
    decoder.is_quantized, decoder.quantization_method = True, _METHOD


@register_quantization_config(_METHOD)
class RowsConfig(QuantizationConfigMixin):
    """What config.json says of a quantized decoder.

    Args:
        form: A name of :data:`FORMATS`.
        **kwargs: Ignored.
    """

    def __init__(self, form: str, **kwargs: Any):
        self.quant_method = _METHOD
        self.form = form


@register_quantizer(_METHOD)
class RowsQuantizer(HfQuantizer):
    """Loads a decoder whose blocks' linear layers are :class:`QuantizedLinear`; transformers calls its methods."""

    requires_calibration = True

    def get_new_dtype(self, *args: Any) -> None:
        """Nothing is cast as it is read: of a float alone can't be seen whether it is a scale."""

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> PreTrainedModel:
        for name, layer in [*model.named_modules()]:
            parent, _, leaf = name.rpartition(".")
            if leaf in LINEAR and isinstance(layer, nn.Linear):
                with torch.device("meta"):
                    weight = torch.empty(layer.weight.shape, dtype=FORMATS[self.quantization_config.form])
                    made = QuantizedLinear(weight, torch.empty(len(weight), 1), layer.bias)
                setattr(model.get_submodule(parent), leaf, made)
        return model

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> PreTrainedModel:
        for weights in model.parameters():  # rotary frequencies are no weights and stay in float32
            weights.data = weights.data.to(model.config.dtype)
        return model

    def is_serializable(self) -> bool:
        """It is: its tensors are saved as they are."""
        return True

    @property
    def is_trainable(self) -> bool:
        """It is not: weights of eight bits have no gradient."""
        return False
