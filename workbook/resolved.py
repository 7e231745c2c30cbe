"""Complete descriptions: defaults are written like everything else, so that a changed default shows.

Records, cached stages and trained folders are identified by the sha256 of such a description.
"""

from __future__ import annotations

import hashlib
import json
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_NOT_CONTENT = {
    *("_name_or_path", "name_or_path", "_model_name_or_path", "architectures", "transformers_version"),
    *("_attn_implementation", "dtype", "torch_dtype"),
}
_LATENT = {"mlp_ratio": 4, "train_dictionary": True}

ADDED_LATER: dict[str, dict[str, Any]] = {
    "Adapter": {"keep_zeros": False},
    "Chain": {"prefix_cache": False},
    "Stage": {"mixed": False, "others": None, "frozen": False, "context_alone": False, "context_rate": 1.0},
    "latent_attention pooling": _LATENT,
    "LatentAttention": _LATENT,
    "self_attention pooling": {"mlp_ratio": 4},
    "SelfAttention": {"mlp_ratio": 4},
    "encoder": {"length": "torch", "layers": None},
}
"""By name, fields that were added when records already existed, each with the value that changes nothing.

The name is that of the class that has the field, which holds for its subclasses too, or that of options without a
class: ``encoder``, or a pooling's such as ``lexicon pooling`` (its module's class stands for those of a built model). A
field with that value is left out of a description, so that records, kept stages and trained folders made before it
existed remain valid; any other value shows. The value is the one that means "as before", whatever the current default.
"""


def resolved(thing: Any) -> Any:
    """Plain data for JSON, with every field of all nested models, dataclasses and mappings, defaults included.

    Args:
        thing: A pydantic model, a dataclass, a mapping, a sequence or a plain value.

    Examples:
        >>> from workbook.training.recipe import Adapter
        >>> resolved(Adapter(rank=4))["alpha"]
        32.0
    """
    if isinstance(thing, BaseModel):
        return _without_neutral(_names(thing), {name: getattr(thing, name) for name in type(thing).model_fields})
    if is_dataclass(thing):
        return _without_neutral(_names(thing), {one.name: getattr(thing, one.name) for one in fields(thing)})
    if isinstance(thing, Mapping):
        return {str(key): resolved(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [resolved(value) for value in thing]
    return thing


def resolved_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """:func:`resolved` of options that have no class.

    Args:
        name: Their name in :data:`ADDED_LATER`.
        options: Values by name, defaults included.
    """
    return _without_neutral([name], options)


def _names(thing: object) -> list[str]:
    return [kind.__name__ for kind in type(thing).__mro__]


def _without_neutral(names: Iterable[str], values: Mapping[str, Any]) -> dict[str, Any]:
    neutral = ChainMap(*(ADDED_LATER.get(name, {}) for name in names))
    return {
        name: resolved(value)
        for name, value in values.items()
        # 0 is not False
        if not (name in neutral and value == neutral[name] and type(value) is type(neutral[name]))
    }


def configuration_content(transformer: PreTrainedModel) -> dict[str, Any]:
    """A configuration, without where it came from, how it is computed, and in what precision."""
    settings = json.loads(transformer.config.to_json_string(use_diff=False))
    return {name: value for name, value in settings.items() if name not in _NOT_CONTENT}


def tokenizer_content(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """A fast tokenizer, without what its last call left in it."""
    made = json.loads(tokenizer.backend_tokenizer.to_str())
    return [made | {"truncation": None, "padding": None}, tokenizer.special_tokens_map, tokenizer.chat_template]


def digest(content: object) -> str:
    """Hex sha256 of plain data: equal for equal content, on every machine.

    Raises:
        TypeError: Something that JSON does not know, since two objects that print alike would have the same digest.
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
