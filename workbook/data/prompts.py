"""The prompts for writing synthetic training data, and the form of their answers.

They are data of the method: keys, placeholders and their values are exactly the paper's, and everything that it asks
for is asked for, but the sentences are ours. NV-Embed prints no prompts of its third kind, ``short-short``: its keys
are those of E5-mistral, whose prompts it adjusts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator

Text = Annotated[str, StringConstraints(strict=True, strip_whitespace=True, min_length=1)]


class Example(BaseModel):
    """The form of an answer of step two: these keys and no other, with strings that are not blank and all different."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="after")
    def _texts_differ(self) -> Example:
        names = {}
        for name, text in self:
            if (other := names.setdefault(plain(text), name)) != name:
                raise ValueError(f"{other} and {name} say the same")
        return self


class RetrievalExample(Example):
    """A query, a document that answers it, and two that only seem to; in the order of the columns of pairs."""

    user_query: Text
    positive_document: Text
    hard_negative_document1: Text
    hard_negative_document2: Text


class ClassificationExample(Example):
    """A text, its label, and one that misleads; in the order of the columns of pairs."""

    input_text: Text
    label: Text
    misleading_label: Text


class MatchingExample(Example):
    """A short text and another that matches it; in the order of the columns of pairs."""

    input: Text
    positive_document: Text


@dataclass(frozen=True)
class Prompts:
    """The two prompts of a kind of task.

    Attributes:
        brainstorm: Asks for a JSON list of tasks.
        example: Asks for a JSON object; ``{task}`` and the placeholders are to be filled in.
        placeholders: The values of each placeholder, of which one is drawn for every example.
        output: The pydantic model of that object.
    """

    brainstorm: str
    example: str
    placeholders: dict[str, tuple[str, ...]]
    output: type[Example]


_LIST = """
Answer with a JSON list of strings and nothing else: about 40 of them, each one a different task, told in a \
sentence. Add no explanation. Be creative!"""

_OBJECT = """
Answer with that one JSON object and nothing else. Add no explanation. Be creative!"""

PROMPTS: dict[str, Prompts] = {
    "short-long": Prompts(
        brainstorm=f"""Think up text retrieval tasks that could be of use in practice.

Three examples of what is meant:
- For a question typed into a search engine, find the passages that answer it
- For a statement on the changing climate, find documents that back it or speak against it
- For the title of a job, find advertisements that say what is done in it

What to keep to:
- A task names the kind of query and the kind of texts that are wanted.
- A task is not too specific: a wide range of queries belongs to it.
- Together, the tasks cover many kinds of queries and many kinds of texts.
{_LIST}""",
        example=f"""This is your retrieval task: {{task}}

Write a single example of the task, as a JSON object with exactly these keys:
- "user_query": a string, what the task says is given, a case of it chosen at random.
- "positive_document": a string, a document that is relevant to the query.
- "hard_negative_document1": a string, a hard negative: a document that looks relevant to the query and is not.
- "hard_negative_document2": a string, one more hard negative that looks relevant and is not.

What to keep to:
- The "user_query" is {{query_type}}, {{query_length}}, {{clarity}}, and could be on any topic. It holds only what the \
task says is given, and does not repeat the task.
- Documents are written independently of the query and don't quote it word for word. Parts of the "positive_document" \
may be on other topics.
- Every document has at least {{num_words}} words.
- The "hard_negative_document1" may be of some use, but tells less, or less completely, than the "positive_document".
- The "hard_negative_document2" is on a topic that is related, but another.
- No document says why it is relevant to the query, or why it is not.
- To understand the query and the documents takes an education of {{difficulty}} level.
{_OBJECT}""",
        placeholders={
            "query_type": ("extremely long-tail", "long-tail", "common"),
            "query_length": ("less than 5 words", "5 to 15 words", "at least 10 words"),
            "difficulty": ("high school", "college", "PhD"),
            "clarity": ("clear", "understandable with some effort", "ambiguous"),
            "num_words": ("50", "100", "200", "300", "400", "500"),
        },
        output=RetrievalExample,
    ),
    "long-short": Prompts(
        brainstorm=f"""Think up text classification tasks that could be of use in practice.

What to keep to:
- Together, the tasks cover many domains and many types of task.
{_LIST}""",
        example=f"""This is your text classification task: {{task}}

Write a single example of the task, as a JSON object with exactly these keys:
- "input_text": a string, a text that the task is to classify.
- "label": a string, the label that is correct for the text.
- "misleading_label": a string, a label of the same task that is wrong for the text.

What to keep to:
- The "input_text" is {{num_words}} words long and varied in its wording.
- The "misleading_label" is a valid label of the task, but fits the "input_text" less well than the "label" does.
- Neither the "label" nor the "misleading_label" occurs in the "input_text": it would be too easy then.
- The "input_text" is {{clarity}}, and to understand it takes an education of {{difficulty}} level.
{_OBJECT}""",
        placeholders={
            "num_words": ("less than 10", "at least 10", "at least 50", "at least 100", "at least 200"),
            "difficulty": ("high school", "college", "PhD"),
            "clarity": ("clear", "understandable with some effort", "ambiguous"),
        },
        output=ClassificationExample,
    ),
    "short-short": Prompts(
        brainstorm=f"""Think up text matching tasks that could be of use in practice, in which queries and the texts \
that match them are both very short: a phrase, a sentence, two at most.

Three examples of what is meant:
- For the title of a song, find titles of songs on the same subject
- For what a tool is used for, find its name
- For a proverb, find one that says the same in other words

What to keep to:
- Together, the tasks cover many domains and many ways in which two texts can match.
{_LIST}""",
        example=f"""This is your text matching task: {{task}}

Write a single example of the task, as a JSON object with exactly these keys:
- "input": a string, what the task says is given, a case of it chosen at random.
- "positive_document": a string, a text that matches the input in the way of the task.

What to keep to:
- The "input" and the "positive_document" are both very short, a phrase or a sentence.
- They share few words: it would be too easy then.
- Each is written independently of the other.
{_OBJECT}""",
        placeholders={},
        output=MatchingExample,
    ),
}
"""Prompts by kind: ``short-long`` matches queries with documents (retrieval), ``long-short`` texts with labels,
``short-short`` short texts with short ones.

Source: NV-Embed, section 4.3, tables 15 and 16; the keys of ``short-short`` are of E5-mistral (Wang et al. 2023b).
"""


def plain(text: str) -> str:
    """The text in lower case and without differences in spaces."""
    return " ".join(text.casefold().split())
