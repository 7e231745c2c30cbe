"""The templates by name, each laid out as a paper or its code does; and what may be given for a template."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ..errors import InvalidValueError, UnknownNameError
from .template import Piece, Template


def _pieces(*pieces: tuple[str, bool]) -> tuple[Piece, ...]:
    return tuple(Piece(*piece) for piece in pieces)


_BOS, _CONTEXT = ("{bos}", False), ("{context}", False)
_NV_EMBED = Template(
    instructed=_pieces(_BOS, ("Instruct: {instruction}\nQuery: ", False), ("{text}", True), ("{eos}", True)),
    plain=_pieces(("{bos}", True), ("{text}", True), ("{eos}", True)),
)

TEMPLATES: dict[str, Template] = {
    # LLM2Vec, section 3.2: instruction, one space, text; only the text is pooled.
    "plain": Template(
        instructed=_pieces(_BOS, ("{instruction} ", False), ("{text}", True)),
        plain=_pieces(_BOS, ("{text}", True)),
    ),
    # The same with EOS at the end, for last-token pooling.
    "eos": Template(
        instructed=_pieces(_BOS, ("{instruction} ", False), ("{text}", True), ("{eos}", True)),
        plain=_pieces(_BOS, ("{text}", True), ("{eos}", True)),
    ),
    # NV-Embed, equation 2 and released code: EOS is pooled, and without an instruction BOS too.
    "nv-embed": _NV_EMBED,
    # The same with the released code's mask, under which the published checkpoints were evaluated: where there is a BOS
    # the instruction's last token is pooled, which the paper does not.
    "nv-embed-released": _NV_EMBED.model_copy(update={"mask": "columns"}),
    # Echo embeddings (Springer et al. 2024), published code: the second copy and EOS are pooled.
    "echo": Template(
        instructed=_pieces(
            ("{bos}Instruct:", False),
            ("{instruction},", False),
            ("\nQuery:", False),
            ("{text}", False),
            ("\nQuery again:", False),
            ("{text}", True),
            ("{eos}", True),
        ),
        plain=_pieces(
            ("{bos}Document:", False),
            ("{text}", False),
            ("\nDocument again:", False),
            ("{text}", True),
            ("{eos}", True),
        ),
        joint=False,
    ),
    # LENS, equation 3 and released code. There <instruct>, <query> and <response> are added to the tokenizer, and each
    # has a new row of embeddings that training must fill. Here they are strings: a tokenizer that knows them reads each
    # as one token, any other as several, and neither tokenizer nor embeddings change. To have them added, name a
    # folder with a backbone and a tokenizer that have them. The text is marked; lexicon pooling goes one to the left.
    "lens": Template(
        instructed=_pieces(_BOS, ("<instruct>{instruction}\n<query>", False), ("{text}", True), ("{eos}", False)),
        plain=_pieces(_BOS, ("{text}", True), ("{eos}", False)),
        words_only=True,
    ),
    # PromptReps' prompt as LENS quotes it (section 3.1.2), the text in quotation marks as in PromptEOL (Jiang et al.
    # 2023). The vector is read at the last token, the mark that opens the word. Blanks keep the marks around the text
    # tokens of their own, which stay when it is cut. PromptReps has no instruction; here it stands in front.
    "promptreps": Template(
        instructed=_pieces(
            _BOS, ('{instruction}\nThis sentence: " ', False), ("{text}", True), (' " means in one word: "', False)
        ),
        plain=_pieces(_BOS, ('This sentence: " ', False), ("{text}", True), (' " means in one word: "', False)),
        words_only=True,
    ),
    # bge-en-icl (Li et al. 2024), released code: examples and query in one form, and the last token pooled, EOS. It
    # adds the three marks to the tokenizer as LENS does, and they are strings here for the same reason. Where its
    # tokenizer adds no EOS it pools <response>; here EOS is always written. The text is marked for other poolings.
    "icl": Template(
        instructed=_pieces(
            _BOS,
            ("{examples}", False),
            ("<instruct>{instruction}\n<query>", False),
            ("{text}", True),
            ("\n<response>", False),
            ("{eos}", True),
        ),
        plain=_pieces(_BOS, ("{text}", True), ("{eos}", True)),
        example="<instruct>{instruction}\n<query>{query}\n<response>{response}\n\n",
    ),
    # GritLM (Muennighoff et al. 2024), released code: the form of its chat, without an end token. To its tokenizer the
    # marks are strings as well.
    "gritlm": Template(
        instructed=_pieces(_BOS, ("<|user|>\n{instruction}\n<|embed|>\n", False), ("{text}", True)),
        plain=_pieces(_BOS, ("<|embed|>\n", False), ("{text}", True)),
    ),
    # Causal2Vec, equation 2. Instruction and text are tokenized apart, since the contextual token stands between them,
    # and the text alike with an instruction and without. The paper does not say how instructions read; they are bare.
    # Its tokenizers add BOS; where one does not, it is written all the same: without an instruction the contextual
    # token would be the first, and the state of a first token is much the same whatever it says.
    "causal2vec": Template(
        write_bos=True,
        instructed=_pieces(_BOS, ("{instruction}", False), _CONTEXT, ("{text}", True), ("{eos}", True)),
        plain=_pieces(_BOS, _CONTEXT, ("{text}", True), ("{eos}", True)),
    ),
    # The same with the contextual token in front of the instruction (table 4).
    "causal2vec-before": Template(
        write_bos=True,
        instructed=_pieces(_BOS, _CONTEXT, ("{instruction} ", False), ("{text}", True), ("{eos}", True)),
        plain=_pieces(_BOS, _CONTEXT, ("{text}", True), ("{eos}", True)),
    ),
    # The same in a chat of Llama 2 or Mistral, as for the paper's 7B models (appendix A.1). Where the contextual token
    # goes, the paper does not say; here the opener is in front of it, with the instruction.
    "causal2vec-chat": Template(
        write_bos=True,
        instructed=_pieces(
            _BOS, ("[INST] {instruction}", False), _CONTEXT, ("{text}", True), (" [/INST]", False), ("{eos}", True)
        ),
        plain=_pieces(_BOS, ("[INST]", False), _CONTEXT, ("{text}", True), (" [/INST]", False), ("{eos}", True)),
    ),
    # With examples, in the form of icl ("w/ ICL" in table 1). They are read as text, without contextual tokens of their
    # own, and the query's token stands where its own words begin: the paper does not say.
    "causal2vec-icl": Template(
        write_bos=True,
        instructed=_pieces(
            _BOS,
            ("{examples}", False),
            ("<instruct>{instruction}\n<query>", False),
            _CONTEXT,
            ("{text}", True),
            ("\n<response>", False),
            ("{eos}", True),
        ),
        plain=_pieces(_BOS, _CONTEXT, ("{text}", True), ("{eos}", True)),
        example="<instruct>{instruction}\n<query>{query}\n<response>{response}\n\n",
    ),
}


def get_template(name: str) -> Template:
    """The template of that name.

    Raises:
        UnknownNameError: No such template; the message lists all.
    """
    if name not in TEMPLATES:
        raise UnknownNameError("template", name, TEMPLATES)
    return TEMPLATES[name]


def as_template(template: str | Template | dict[str, Any]) -> Template:
    """A template, from its name, from itself, or from data.

    Raises:
        UnknownNameError: No template of that name.
        InvalidValueError: Data that are not a template; the message names the field.
    """
    if isinstance(template, str):
        return get_template(template)
    try:
        return Template.model_validate(template)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc'])) or 'template'}: {first['msg']}."
        raise InvalidValueError(
            "template", f"one of {[*TEMPLATES]}, a Template or its data", template, problem
        ) from error
