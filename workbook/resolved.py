"""Complete descriptions: defaults are written like everything else, so that a changed default shows.

Records, cached stages and trained folders are identified by the sha256 of such a description.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel

ADDED_LATER: dict[str, dict[str, Any]] = {}
"""Fields that were added when records already existed, by class, each with the value that changes nothing.

A description leaves that value out, so that records made before the field existed keep their fingerprints; any other
value shows. It is the value that means "as before", whatever the default is now.
"""


def resolved(thing: Any) -> Any:
    """Plain data for JSON, with every field of every model, dataclass and mapping inside it, defaults included.

    Example:
        >>> from workbook.training.recipe import Adapter
        >>> resolved(Adapter(rank=4))["alpha"]
        32.0
    """
    if isinstance(thing, BaseModel):
        return _without_neutral(thing, {name: getattr(thing, name) for name in type(thing).model_fields})
    if is_dataclass(thing):
        return _without_neutral(thing, {one.name: getattr(thing, one.name) for one in fields(thing)})
    if isinstance(thing, Mapping):
        return {str(key): resolved(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [resolved(value) for value in thing]
    return thing


def _without_neutral(thing: object, values: Mapping[str, Any]) -> dict[str, Any]:
    neutral = ADDED_LATER.get(type(thing).__name__, {})
    return {name: resolved(value) for name, value in values.items() if name not in neutral or value != neutral[name]}


def digest(content: object) -> str:
    """Hex sha256 of plain data: equal for equal content, on every machine.

    Raises:
        TypeError: Something that JSON does not know, since two objects that print alike would have the same digest.
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
