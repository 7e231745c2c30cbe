"""The layout of a text: from an instruction and the text to token ids, and which of them are pooled.

A template is a sequence of pieces. A piece is a string with placeholders (``{instruction}`` and ``{text}``; or
``{bos}``, ``{eos}``, ``{examples}`` or ``{context}`` alone) and says whether its tokens are pooled. The mask is exact:
a token is pooled if it covers a character of a pooled piece, whatever the tokenizer merges at the border.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

from ..errors import InvalidValueError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CONTEXT = -1
"""The id of a contextual token, which is not a word: no tokenizer gives it, and no table of embeddings has it."""
_SPECIAL = ("{bos}", "{eos}", "{context}")
_WRITTEN_OUT = re.compile(
    r"^\s*(instruct(ion)?:|<instruct>|<\|user\|>|\[INST\])|(\n\s*query:|<query>|<\|embed\|>)\s*$", re.IGNORECASE
)
"""The marks that published templates put in front of an instruction, and behind it."""


class Piece(NamedTuple):
    """A string with placeholders, and whether its tokens are pooled."""

    string: str
    pooled: bool


_TOKEN = np.dtype([("id", np.int64), ("pooled", bool), ("of_text", bool), ("counted", bool)])
"""A token: its id, whether it is pooled, whether it covers the text, and whether the length limit counts it."""


class Encoded(NamedTuple):
    """One text as token ids, for each token 1 if it is pooled, else 0, and how many stand in front of what is its own.

    Its own are the text and contextual tokens; BOS, instruction and examples are what other texts begin with too.
    """

    input_ids: list[int]
    pooling_mask: list[int]
    prefix: int = 0


class Template(BaseModel):
    """The layout of a text.

    Attributes:
        instructed: Pieces used with an instruction.
        plain: Pieces used without one.
        joint: Tokenize neighbouring pieces as one string (LLM2Vec, NV-Embed, LENS, bge-en-icl) or each on its own
            (Echo). The length limit is that of the whole input if joint, and of each piece if not, as published.
        mask: ``span`` is the exact rule. The others are published rules, which differ from it if a token crosses the
            border. ``count``, of LLM2Vec, pools as many trailing tokens as the text has when tokenized alone. ``lead``,
            of NV-Embed, leaves out as many leading tokens as the part in front of the text has when tokenized alone,
            and the text's first word too if the tokenizer joins a space to the next word. ``columns``, of NV-Embed's
            released code, counts a BOS among them, and so pools the instruction's last token.
        write_bos: Write ``{bos}`` if the tokenizer has one, even if it would not add it by itself.
        words_only: Refuse a text that consists of special tokens and blanks alone.
        example: Layout of one of the ``{examples}``: a string with ``{instruction}``, ``{query}`` and ``{response}``.
        examples: Pairs of a query and its response, by bare instruction; other instructions have none. The length limit
            does not count their tokens, as published: the text is cut where it would be without them.
        suffix: What ``{eos}`` stands for: ``eos``, the end-of-text token; ``answer``, what the tokenizer's chat
            template writes between a user's message and the answer; or ``keywords``, the string of that name. If
            ``{eos}`` is pooled, only the last token of the suffix is.
        keywords: The suffix ``keywords``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    instructed: tuple[Piece, ...]
    plain: tuple[Piece, ...]
    joint: bool = True
    mask: Literal["span", "count", "lead", "columns"] = "span"
    write_bos: bool = False
    words_only: bool = False
    example: str = ""
    examples: dict[str, tuple[tuple[str, str], ...]] = {}
    suffix: Literal["eos", "answer", "keywords"] = "eos"
    keywords: str = "\nKeywords:"

    @model_validator(mode="after")
    def _examples_are_found(self) -> Self:
        if self.examples and not (self.joint and any(piece.string == "{examples}" for piece in self.instructed)):
            raise ValueError("examples in a template that has no place for them")
        if any(not key or key != key.strip() for key in self.examples):
            raise ValueError("examples of an instruction that is blank or has spaces around it")
        return self

    @model_validator(mode="after")
    def _suffix_has_a_place(self) -> Self:
        if self.suffix != "eos" and not all(
            any(piece.string == "{eos}" for piece in form) for form in (self.instructed, self.plain)
        ):
            raise ValueError("a suffix in a template that has no place for it, {eos}")
        return self

    def with_(self, **fields: Any) -> Template:
        """The template with other values of some fields, which are checked as in a new one.

        Raises:
            InvalidValueError: A field that does not exist, a value of the wrong kind, or a suffix or examples that the
                template has no place for.
        """
        from .named import as_template  # here, since the named templates are made of this class

        return as_template({**dict(self), **fields})

    def encode(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: Sequence[str],
        instruction: str | None,
        max_length: int,
        contextual_tokens: int = 0,
    ) -> list[Encoded]:
        """Token ids and pooling masks of texts, unpadded.

        ``{bos}`` is left out if the tokenizer has none or would not add it; ``write_bos``, and templates that tokenize
        piece by piece, write it all the same if there is one. A special token spelt out in a text is read as that
        token, as in the published code. A text without any token is read as one EOS token, so that it still has a
        vector. What does not fit is cut from the right end of the text; instruction, examples and suffix always stay.

        Args:
            tokenizer: A fast tokenizer.
            texts: Strings.
            instruction: The bare task instruction, or None or blank for none.
            max_length: Longest input in tokens; see ``joint`` and ``examples``.
            contextual_tokens: Number of ids :data:`CONTEXT` in place of ``{context}``; they count like other tokens.

        Raises:
            InvalidValueError: The template's own tokens alone fill ``max_length``; with ``words_only``, a text of
                special tokens; a text without any token where the tokenizer has no EOS; or an instruction or a text
                that is already laid out, where the template would do so again.
        """
        instruction = (instruction or "").strip()
        pieces = self.instructed if instruction else self.plain
        if (found := _WRITTEN_OUT.search(instruction)) and self._has_marks():
            layout = "".join(piece.string for piece in self.instructed if "{instruction}" in piece.string)
            raise InvalidValueError(
                "instruction (prompt)", f"the bare instruction, which the template lays out as {layout!r}", instruction,
                f"Leave {found[0].strip()!r} out, or build with template='plain', which adds nothing.",
            )  # fmt: skip
        front = self._front(instruction)
        if front and (laid_out := next((text for text in texts if text.lstrip().startswith(front)), None)):
            raise InvalidValueError(
                "texts", f"bare texts beside an instruction, which the template lays out as {front!r}",
                textwrap.shorten(laid_out, 80), "Give the text alone, or no prompt.",
            )  # fmt: skip
        if self.words_only:
            _refuse_markup(tokenizer, texts)
        groups = self._groups(pieces, tokenizer)
        segments = [
            [_tokens([CONTEXT] * contextual_tokens, group[0].pooled)] * len(texts)
            if group[0].string == "{context}"
            else self._segment(tokenizer, group, texts, instruction)
            for group in groups
        ]
        rows = []
        for text, *parts in zip(texts, *segments, strict=True):
            if self.joint:
                parts = self._cut(parts, max_length, text)
            else:
                limits = (None if group[0].string == "{eos}" else max_length for group in groups)
                parts = [part[:limit] for part, limit in zip(parts, limits, strict=True)]
            tokens = np.concatenate(parts)
            prefix = int((tokens["of_text"] | (tokens["id"] == CONTEXT)).argmax())
            rows.append(Encoded(tokens["id"].tolist(), tokens["pooled"].astype(int).tolist(), prefix))
        return rows

    def _has_marks(self) -> bool:
        """True if the instruction stands among words or marks of the template's own."""
        return any(
            "{instruction}" in (string := piece.string) and string.strip() != "{instruction}"
            for piece in self.instructed
        )

    def _front(self, instruction: str) -> str:
        """What the template writes around an instruction in front of the text; empty if that is nothing of its own."""
        if not instruction or not self._has_marks():
            return ""
        front, found, _ = "".join(piece.string for piece in self.instructed).partition("{text}")
        front = re.sub(r"\{(bos|eos|context|examples)\}", "", front)
        return front.replace("{instruction}", instruction).strip() if found and "{instruction}" in front else ""

    def closes(self, tokenizer: PreTrainedTokenizerBase) -> bool:
        """True if the last pooled token is of the suffix; otherwise it is one of the text's own."""
        last = [next(piece for piece in reversed(form) if piece.pooled) for form in (self.instructed, self.plain)]
        written = self.suffix != "eos" or tokenizer.eos_token_id is not None
        return written and all(piece.string == "{eos}" for piece in last)

    def _writes_bos(self, tokenizer: PreTrainedTokenizerBase) -> bool:
        written = self.write_bos or not self.joint or _adds_bos(tokenizer)
        return written and tokenizer.bos_token_id is not None

    def _groups(self, pieces: tuple[Piece, ...], tokenizer: PreTrainedTokenizerBase) -> list[list[Piece]]:
        """Pieces that are tokenized together; special tokens stand alone."""
        written = self._writes_bos(tokenizer)
        kept = [piece for piece in pieces if piece.string != "{bos}" or written]
        if not self.joint:
            return [[piece] for piece in kept]
        groups = []
        for special, run in groupby(kept, key=lambda piece: piece.string in _SPECIAL):
            group = list(run)
            groups.extend([[piece] for piece in group] if special else [group])
        return groups

    def _segment(
        self, tokenizer: PreTrainedTokenizerBase, group: list[Piece], texts: Sequence[str], instruction: str
    ) -> list[np.ndarray]:
        """Per text, the tokens of one group."""
        if group[0].string == "{eos}" and self.suffix != "eos":
            suffix = answer_opening(tokenizer) if self.suffix == "answer" else self.keywords
            ids = tokenizer(suffix, add_special_tokens=False)["input_ids"]
            return [_tokens(ids, [*[False] * (len(ids) - 1), group[0].pooled])] * len(texts)
        if group[0].string in ("{bos}", "{eos}"):
            token = tokenizer.bos_token_id if group[0].string == "{bos}" else tokenizer.eos_token_id
            return [_tokens([] if token is None else [token], group[0].pooled)] * len(texts)
        rendered = [[self._render(piece, text, instruction, tokenizer) for piece in group] for text in texts]
        encoded = tokenizer(
            ["".join(strings) for strings in rendered],
            add_special_tokens=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        reach = range(len(group) + 1)
        kinds = np.array([[(0, *self._kind(group[a:b])) for b in reach] for a in reach], _TOKEN)
        segment = []
        for strings, ids, offsets in zip(rendered, encoded["input_ids"], encoded["offset_mapping"], strict=True):
            borders = np.cumsum([0, *map(len, strings)])
            starts, ends = np.array(offsets, dtype=int).reshape(-1, 2).T
            # The pieces that a token covers, from the first that ends behind its start to the last that begins before
            # its end.
            first = borders[1:].searchsorted(starts, side="right")
            last = borders[:-1].searchsorted(np.maximum(ends, starts + 1), side="left")
            row = kinds[first, last]
            row["id"] = ids
            segment.append(row)
        if not any("{text}" in piece.string for piece in group):
            return segment
        if self.mask != "span":
            counted = self.mask == "count"
            alone = ["".join(s for s, p in zip(row, group, strict=True) if p.pooled is counted) for row in rendered]
            counts = [len(ids) for ids in tokenizer(alone, add_special_tokens=False, verbose=False)["input_ids"]]
            ahead = int(self.mask == "columns" and self._writes_bos(tokenizer))
            for row, n in zip(segment, counts, strict=True):
                row["pooled"] = np.arange(len(row)) >= (len(row) - n if counted else n - ahead)
        pooled = any(piece.pooled for piece in group if "{text}" in piece.string)
        for place, (text, row) in enumerate(zip(texts, segment, strict=True)):
            if not row["of_text"].any():
                if tokenizer.eos_token_id is None:
                    expected = "words, since this tokenizer has no EOS token, which would stand in for none"
                    raise InvalidValueError("texts", expected, text, "Drop it.")
                segment[place] = np.append(row, _tokens([tokenizer.eos_token_id], pooled, of_text=True))
        return segment

    def _kind(self, covered: Sequence[Piece]) -> tuple[bool, bool, bool]:
        """Of a token that covers these pieces, whether it is pooled, of the text, and counted."""
        counted = not self.examples or any(piece.string != "{examples}" for piece in covered)
        return any(piece.pooled for piece in covered), any("{text}" in piece.string for piece in covered), counted

    def _render(self, piece: Piece, text: str, instruction: str, tokenizer: PreTrainedTokenizerBase) -> str:
        examples = (
            self.example.format(instruction=instruction, query=query, response=response)
            for query, response in self.examples.get(instruction, ())
        )
        return piece.string.format(
            text=text,
            instruction=instruction,
            examples="".join(examples),
            bos=tokenizer.bos_token or "",
            eos=tokenizer.eos_token or "",
        )

    def _cut(self, parts: list[np.ndarray], max_length: int, text: str) -> list[np.ndarray]:
        """Drop tokens from the right end of the text until the whole input, examples aside, fits."""
        tokens = np.concatenate(parts)
        counted = int(tokens["counted"].sum())
        excess = counted - max_length
        if excess <= 0:
            return parts
        places = np.flatnonzero(tokens["of_text"])
        if excess >= len(places):
            raise InvalidValueError(
                "max_length",
                f"room for the template's own {counted - len(places)} tokens and at least one of the text",
                max_length,
                f"Shorten the instruction or raise max_length (text: {text[:40]!r}).",
            )
        return [np.delete(tokens, places[-excess:])]


def _tokens(ids: Sequence[int], pooled: bool | Sequence[bool], of_text: bool = False) -> np.ndarray:
    """Tokens that the length limit counts."""
    made = np.zeros(len(ids), _TOKEN)
    made["id"], made["pooled"], made["of_text"], made["counted"] = ids, pooled, of_text, True
    return made


def answer_opening(tokenizer: PreTrainedTokenizerBase) -> str:
    """The text that a tokenizer's chat template writes between a user's message and the answer.

    Raises:
        InvalidValueError: No chat template, or one that writes nothing there.
    """
    words = "the-words-of-a-user"
    if tokenizer.chat_template:
        message = [{"role": "user", "content": words}]
        rendered = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        if opening := rendered.rpartition(words)[2]:
            return opening
    raise InvalidValueError(
        "suffix", "eos, since this tokenizer's chat template opens no answer", "answer",
        "Name an instruction-tuned backbone, or close texts with eos.",
    )  # fmt: skip


def _adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the tokenizer adds a beginning-of-text token by itself (measured, since flags mislead)."""
    ids = tokenizer("a")["input_ids"]
    return bool(ids) and ids[0] == tokenizer.bos_token_id


def _refuse_markup(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> None:
    """Refuse texts of special tokens without a word; an empty or blank text has none, and passes."""
    # The longest first, where one begins as another does.
    special = "|".join(map(re.escape, sorted(tokenizer.all_special_tokens, key=len, reverse=True)))
    for text in texts:
        rest = re.sub(special, "", text)
        if rest != text and not rest.strip():
            hint = "Nothing of it could be pooled: drop it, or strip the markup."
            raise InvalidValueError("texts", "words, not special tokens alone", text, hint)
