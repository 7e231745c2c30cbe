"""Templates: how an instruction and a text become token ids, and which of those tokens are pooled."""

from .named import TEMPLATES, as_template, get_template
from .template import CONTEXT, Encoded, Piece, Template, answer_opening

__all__ = [
    "CONTEXT",
    "TEMPLATES",
    "Encoded",
    "Piece",
    "Template",
    "answer_opening",
    "as_template",
    "get_template",
]
