"""Linear layers whose weights are stored in 8 bits, and how transformers loads a decoder that has them.

Such a decoder's ``config.json`` has ``quantization_config``, with ``quant_method`` ``workbook`` and the format.
Importing this module registers the method with transformers, which then makes the layers before it reads the weights.

Why not a library: compressed-tensors 0.20 has int8 and E4M3, but no E5M2, and its layers come through schemes and
observers made for activations that are quantized too. torchao's weights are tensors of a class of its own, which
transformers 5 saves through ``torchao.prototype``. What is stored here is a matrix of codes and a scale per row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel
from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from .errors import UnknownNameError

FORMATS = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
"""Dtypes of the formats by name. ``e4m3`` has 4 bits of exponent and 3 of mantissa, ``e5m2`` 5 and 2."""
METHOD = "workbook"
"""Name of the method of quantization in a decoder's configuration."""


def dtype_of(form: str) -> torch.dtype:
    """The dtype of a format.

    Args:
        form: One of :data:`FORMATS`.

    Raises:
        UnknownNameError: No such format.
    """
    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    return FORMATS[form]


class Quantized(NamedTuple):
    """A matrix in 8 bits: a row's weights are its codes times its scale.

    Attributes:
        codes: (rows, columns), of a dtype of :data:`FORMATS`.
        scale: float32 (rows, 1), positive.
    """

    codes: torch.Tensor
    scale: torch.Tensor

    def dequantized(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weights (rows, columns) in that dtype.

        They are multiplied in float32: the scale of a row in E5M2, a 57,344th of its largest weight, would be subnormal
        in float16, and wrong by some per cent.
        """
        return (self.codes.float() * self.scale).to(dtype)


class QuantizedLinear(nn.Module):
    """A linear layer that stores its weight in 8 bits and computes in the dtype of its input.

    The weight is dequantized in each forward pass: it saves memory and disk, not time, and needs no 8-bit products,
    which many devices lack. A ``dynamic`` layer has such products on a CPU with instructions for them
    (:func:`multiplies_bytes`), where they save time: each token's state is rounded to 8 bits as well, with a scale of
    its own, found as it comes. One scale for a batch would serve the first token, hundreds of times as large as the
    others, and round those away. Elsewhere it rounds alike, and multiplies the codes in float32. Whatever dtype the
    model is moved to, codes and scale keep their own.

    Args:
        columns: Width of the input.
        rows: Width of the output.
        bias: Whether there is a bias.
        form: One of :data:`FORMATS`.
        dynamic: Whether inputs are rounded too, for ``int8``.
    """

    def __init__(self, columns: int, rows: int, bias: bool, form: str, dynamic: bool = False):
        super().__init__()
        self.in_features, self.out_features, self.dynamic = columns, rows, dynamic
        self.register_buffer("weight", torch.zeros(rows, columns).to(dtype_of(form)))
        self.register_buffer("scale", torch.ones(rows, 1, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(rows)) if bias else None

    @classmethod
    def of(cls, linear: nn.Linear, made: Quantized, form: str, dynamic: bool = False) -> Self:
        """The layer with another's bias and a quantized weight.

        Args:
            linear: The other.
            made: Its weight, quantized.
            form: Format of the codes.
            dynamic: Whether inputs are rounded too.
        """
        layer = cls(linear.in_features, linear.out_features, False, form, dynamic)
        layer.weight, layer.scale, layer.bias = made.codes, made.scale, linear.bias
        return layer.train(linear.training)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """States (.., columns) to (.., rows).

        Args:
            states: Of a floating-point dtype, which the result has too.
        """
        if not self.dynamic:
            return F.linear(states, Quantized(self.weight, self.scale).dequantized(states.dtype), self.bias)
        rows = states.reshape(-1, self.in_features).float()
        steps = rows.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / 127
        codes = (rows / steps).round()
        if states.device.type == "cpu" and multiplies_bytes():
            products = torch._int_mm(codes.to(torch.int8), self.weight.t()).float()
        else:
            products = codes @ self.weight.t().float()
        made = products * steps * self.scale.t()
        made = made if self.bias is None else made + self.bias
        return made.to(states.dtype).reshape(*states.shape[:-1], self.out_features)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        # A cast of the model is one of all floating-point tensors, float8 too. As integers they are moved and not cast.
        kept = {name: (self._buffers[name].dtype, whole) for name, whole in _WHOLE.items()}
        for name, (_, as_whole) in kept.items():
            self._buffers[name] = self._buffers[name].view(as_whole)
        super()._apply(fn, recurse)
        for name, (dtype, _) in kept.items():
            self._buffers[name] = self._buffers[name].view(dtype)
        return self

    def extra_repr(self) -> str:
        """Widths and format, for printing the model."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, weight={self.weight.dtype}, dynamic={self.dynamic}"


_WHOLE = {"weight": torch.int8, "scale": torch.int32}


@lru_cache
def multiplies_bytes() -> bool:
    """Whether this CPU has instructions for products of 8 bits. Without them torch's take twenty times float32's."""
    found = torch.cpu.get_capabilities()
    return any(found.get(name, False) for name in ("avx512_vnni", "avx_vnni", "amx_int8", "i8mm"))


def mark(decoder: PreTrainedModel, form: str, dynamic: bool = False) -> None:
    """Note in a decoder whose layers were quantized how it is stored, so that it is saved and loaded that way.

    Args:
        decoder: The decoder.
        form: The format.
        dynamic: Whether inputs are rounded too.
    """
    decoder.config.quantization_config = Config(form=form, dynamic=dynamic)
    decoder.hf_quantizer = Quantizer(decoder.config.quantization_config)
    decoder.is_quantized, decoder.quantization_method = True, METHOD


def is_quantized(decoder: PreTrainedModel) -> bool:
    """Whether layers of a decoder are stored in 8 bits or fewer, by this library or another."""
    return getattr(decoder.config, "quantization_config", None) is not None


@register_quantization_config(METHOD)
class Config(QuantizationConfigMixin):
    """How a decoder's linear layers are stored.

    Args:
        form: One of :data:`FORMATS`.
        dynamic: Whether inputs are rounded too.
        **_: What transformers adds when it reads a configuration.
    """

    def __init__(self, form: str = "int8", dynamic: bool = False, **_: Any):
        self.quant_method, self.form, self.dynamic = METHOD, form, dynamic
        dtype_of(form)


@register_quantizer(METHOD)
class Quantizer(HfQuantizer):
    """Makes the layers of a decoder that is loaded; transformers then reads their codes and scales."""

    requires_calibration = True

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> None:
        form, dynamic = self.quantization_config.form, self.quantization_config.dynamic
        for block in model.get_decoder().layers:
            for name, linear in [(n, m) for n, m in block.named_modules() if isinstance(m, nn.Linear)]:
                layer = QuantizedLinear(linear.in_features, linear.out_features, linear.bias is not None, form, dynamic)
                block.set_submodule(name, layer)

    def is_serializable(self) -> bool:
        """True: codes and scales are saved as they are."""
        return True

    @property
    def is_trainable(self) -> bool:
        """False: codes have no gradient."""
        return False
