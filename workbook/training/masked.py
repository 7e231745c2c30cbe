"""Low-rank adapters that leave the zeros of a pruned weight where they are."""

from __future__ import annotations

from typing import Any

import peft
import torch
from peft.tuners import lora
from torch import nn
from torch.nn.functional import linear


class MaskedLora(lora.Linear):
    """A linear layer with the weight W + (scaling BA) * (W != 0), in the forward pass as after merging.

    A plain adapter on a pruned layer fills the zeros when it is merged, and masking it only then throws away half of
    what was learnt. Here what is trained is what is kept, exactly. It costs a product of the size of the weight, and
    its gradient, where plain adapters have two thin ones.

    The masked update has full rank, so that B and A alone do not say what was learnt: they are saved by no folder of
    adapters.
    """

    def get_delta_weight(self, adapter: str) -> torch.Tensor:
        """The update of the weight, zero where the weight is; see ``peft.tuners.lora.Linear.get_delta_weight``."""
        return super().get_delta_weight(adapter) * (self.get_base_layer().weight != 0)

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The output for states (.., in), (.., out); see ``peft.tuners.lora.Linear.forward``."""
        base = self.get_base_layer()
        if self.disable_adapters or self.merged:
            return super().forward(x, *args, **kwargs)
        (adapter,) = self.active_adapters
        update, drop = self.get_delta_weight(adapter), self.lora_dropout[adapter]
        if isinstance(drop, nn.Identity):
            return linear(x, base.weight + update.to(base.weight.dtype), base.bias)
        return base(x) + linear(drop(x), update.to(x.dtype))


def masked(config: peft.LoraConfig) -> peft.LoraConfig:
    """A configuration whose adapters keep the zeros of linear layers; it is changed.

    Args:
        config: Of plain adapters.
    """
    config._register_custom_module({nn.Linear: MaskedLora})
    return config
