"""Public training and probe data, read as published: from local files, else from the Hugging Face Hub.

Each reader looks at the path it is given; without one, into the folder named by ``WORKBOOK_DATA``, for files with the
names in :data:`FILES`; then into the Hub and its cache. None of these data are part of the project.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..errors import DamagedFileError, InvalidValueError, UnknownNameError, whole
from .authored import instructions
from .reading import GET_AGAIN, arrow, lines, located, parquet_texts, rows_of, texts_of
from .tables import by_hash

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "wikitext-103-raw": {
        "train": ("wikitext-103-raw/wiki.train.raw", "wikitext-103-raw-v1/train-*.parquet"),
        "validation": ("wikitext-103-raw/wiki.valid.raw", "wikitext-103-raw-v1/validation-*.parquet"),
        "test": ("wikitext-103-raw/wiki.test.raw", "wikitext-103-raw-v1/test-*.parquet"),
    },
    "wiki1m": {"train": ("wiki1m_for_simcse.txt",)},
    "conll2000": {
        "train": ("conll2000/train.txt", "conll2000/train.txt.gz"),
        "test": ("conll2000/test.txt", "conll2000/test.txt.gz"),
    },
    "conll2003": {
        "train": ("conll2003/eng.train", "conll2003/train.txt"),
        "validation": ("conll2003/eng.testa", "conll2003/valid.txt"),
        "test": ("conll2003/eng.testb", "conll2003/test.txt"),
    },
}
"""Files by data set and split, in the order of search below ``WORKBOOK_DATA``; the first matching pattern counts."""

HUB = {
    "wikitext-103-raw": "Salesforce/wikitext",
    "wiki1m": "princeton-nlp/datasets-for-simcse",
    "echo-data": "liuqi6777/echo-data",
}
"""Repositories of data on the Hub. That of conll2003 holds only a script, which nothing runs any more."""

E5_DATASETS = {
    "allnli": "NLI",
    "dureader": "DuReader",
    "eli5_question_answer": "ELI5",
    "fever": "FEVER",
    "hotpot_qa": "HotpotQA",
    "miracl": "MIRACL",
    "mrtydi": "MrTyDi",
    "msmarco_passage": "MSMARCO Passage",
    "msmarco_document": "MSMARCO Document",
    "nq": "NQ",
    "quora_duplicates": "QuoraDuplicates",
    "squad": "SQuAD",
    "t2ranking": "T2Ranking",
    "trivia_qa": "TriviaQA",
}
"""The data sets of E5's public portion: name of the file without ``.jsonl``, and of the task of its instructions."""

CONLL_COLUMNS = {"conll2000": ("word", "pos", "chunk"), "conll2003": ("word", "pos", "chunk", "ner")}
"""Columns of the CoNLL shared tasks; the word is the first."""

_FIELDS = ("query", "positive", "negative")


def wikitext(path: str | Path | None = None, split: str = "train") -> list[str]:
    """The lines of wikitext-103-raw that are not blank: paragraphs and headings, without outer spaces.

    Args:
        path: The raw text, parquet files, or a folder with either; for None see the module.
        split: ``train``, ``validation`` or ``test``.

    Raises:
        UnknownNameError: No such split.
        MissingDataError: The files can't be found.
        DamagedFileError: A file without text or with undecodable bytes, or a part of the parquet files is missing.

    Source:
        LLM2Vec, section 2.2 and appendix D.1.1: the text of the MNTP step.
    """
    files = _find("wikitext-103-raw", split, path)
    return [text for file in files for text in (parquet_texts(file) if file.suffix == ".parquet" else texts_of(file))]


def wiki1m(path: str | Path | None = None) -> list[str]:
    """The sentences of wiki1m_for_simcse.txt, which has one per line; blank lines are left out.

    Args:
        path: The file, or its folder; for None see the module.

    Raises:
        MissingDataError: The file can't be found.
        DamagedFileError: Undecodable bytes, or fewer than the two sentences that a batch needs.

    Source:
        Gao et al. 2021 (SimCSE); LLM2Vec, section 2.2, trains its SimCSE step on it.
    """
    (file,) = _find("wiki1m", "train", path)
    texts = texts_of(file)
    if len(texts) < 2:
        raise DamagedFileError(f"{file}: expected at least two sentences, one a line, got one. {GET_AGAIN}")
    return texts


def chunks(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, length: int, name: str = "texts") -> np.ndarray:
    """Texts tokenized, joined end to end and cut into pieces of one length; the remainder is dropped.

    Each text begins with the special tokens that the tokenizer adds by itself (BOS for Llama, none for SmolLM2).

    Args:
        texts: Any number of texts.
        tokenizer: A Hugging Face tokenizer.
        length: Tokens per chunk.
        name: Name of the texts, for errors.

    Returns:
        int32 (chunks, length).

    Raises:
        InvalidValueError: A length below 2, or texts that don't fill one chunk.

    Source:
        LLM2Vec's released MNTP data, which drops a remainder after every thousand lines, not once. There, lines are
        used as they are; :func:`wikitext` drops blank ones and strips the others.
    """
    if not isinstance(length, int) or length < 2:
        raise InvalidValueError("length", "a number of tokens, 2 or more", length)
    texts = list(texts)
    batches = (texts[start : start + 1000] for start in range(0, len(texts), 1000))
    ids = (tokenizer(batch, verbose=False)["input_ids"] for batch in batches)
    tokens = np.fromiter((token for batch in ids for text in batch for token in text), dtype=np.int32)
    if len(tokens) < length:
        raise InvalidValueError(
            name, f"at least {length} tokens, to fill one chunk", len(tokens), "Give more text or a smaller length."
        )
    return tokens[: len(tokens) // length * length].reshape(-1, length)


def e5(folder: str | Path | None = None, names: Sequence[str] = tuple(E5_DATASETS)) -> dict[str, Dataset]:
    """The public portion of E5's training data, as replicated for Echo and used by LLM2Vec; about 1.5 M rows in all.

    The files are read once into Arrow tables in the cache, which stay on disk. If a data set has two instructions, they
    alternate by row, the first of the table on even rows, counted from 0.

    Args:
        folder: Folder with ``<name>.jsonl``; None for ``echo-data`` below ``WORKBOOK_DATA``, else the Hub.
        names: Some of :data:`E5_DATASETS`.

    Returns:
        Data sets by name, with the string columns query, positive, negative (a hard one), query_instruction and
        document_instruction (empty if documents get none).

    Raises:
        UnknownNameError: No data set of that name.
        MissingDataError: A file can't be found.
        DamagedFileError: A line that is not a JSON object, a field that is missing, empty or not a string, undecodable
            bytes, or fewer than the two rows that in-batch negatives need; the message names file, line and field.

    Source:
        LLM2Vec, appendix G.1 and table 8 (instructions). The sample ratios given there are applied in the files. The
        released code mixes both instructions of allnli, and of quora_duplicates, in a batch; here a stage that does not
        blend makes a data set for each, so that a batch has one.
    """
    for name in names:
        if name not in E5_DATASETS:
            raise UnknownNameError("E5 data set", name, E5_DATASETS)
    table = instructions("llm2vec")
    table = table[table.source.str.contains("training")]
    found = {}
    for name in names:
        (file,) = located(f"E5 data {name}", (f"echo-data/{name}.jsonl",), folder, HUB["echo-data"])
        prompts = tuple(
            (row.instruction, row.instruction if row.side == "both" else "")
            for row in table[table.task == E5_DATASETS[name]].itertuples()
        )
        found[name] = arrow(file, _instructed, prompts=prompts)
    return found


def _instructed(path: Path, prompts: tuple[tuple[str, str], ...]) -> Iterator[dict[str, str]]:
    """The rows of a file with alternating instructions of queries and documents."""
    for number, row in enumerate(rows_of(path, _FIELDS, least=2)):
        query, document = prompts[number % len(prompts)]
        yield {**row, "query_instruction": query, "document_instruction": document}


def conll(task: str, split: str = "train", *, name: str = "conll2003", path: str | Path | None = None) -> pd.DataFrame:
    """Sentences as words with tags, from the column files of the CoNLL shared tasks; ``.gz`` is read as it is.

    A line is a word and its tags, separated by spaces; a blank line ends a sentence. ``-DOCSTART-`` lines are left out.

    Args:
        task: ``pos``, ``chunk`` or, in conll2003, ``ner``.
        split: ``train``, ``test`` or, in conll2003, ``validation``.
        name: ``conll2000`` or ``conll2003``, which decides the columns.
        path: The file, or its folder; for None see the module.

    Returns:
        One row per sentence: words and tags, lists of strings, equally long and not empty.

    Raises:
        UnknownNameError: No such task, split or name.
        MissingDataError: The file can't be found.
        DamagedFileError: Another number of columns, undecodable bytes, or no sentence; the message names the line.

    Source:
        LLM2Vec, section 3.1 and appendix D.1.3 (conll2003). conll2000 (chunking) has no named entities.
    """
    if name not in CONLL_COLUMNS:
        raise UnknownNameError("CoNLL data set", name, CONLL_COLUMNS)
    columns = CONLL_COLUMNS[name]
    if task not in columns[1:]:
        raise UnknownNameError("word-level task", task, columns[1:], f"These are the tags of {name}.")
    (file,) = _find(name, split, path)
    sentences: list[tuple[list[str], list[str]]] = [([], [])]
    for number, line in lines(file):
        fields = line.split()
        if not fields or fields[0] == "-DOCSTART-":
            if sentences[-1][0]:
                sentences.append(([], []))
            continue
        if len(fields) != len(columns):
            raise DamagedFileError(
                f"{file}, line {number}: expected {len(columns)} columns ({', '.join(columns)}), got {len(fields)}: "
                f"{line[:60]!r}. {GET_AGAIN}"
            )
        sentences[-1][0].append(fields[0])
        sentences[-1][1].append(fields[columns.index(task)])
    kept = [sentence for sentence in sentences if sentence[0]]
    if not kept:
        raise DamagedFileError(f"{file}: expected sentences in {len(columns)} columns, got none. {GET_AGAIN}")
    return pd.DataFrame(kept, columns=["words", "tags"])


def conll_samples(task: str, train: int, test: int, *, name: str = "conll2000") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Sentences of the published train and test splits for :func:`workbook.probes.word_probe`, chosen by hash.

    A smaller number takes a part of a larger one's sentences, on every machine.

    Args:
        task: See :func:`conll`.
        train: Number of training sentences; all, if there are fewer.
        test: Number of test sentences; all, if there are fewer.
        name: ``conll2000`` or ``conll2003``.

    Returns:
        Two frames like that of :func:`conll`: to train on and to test.

    Raises:
        InvalidValueError: A number that is not a positive whole one.
        UnknownNameError, MissingDataError, DamagedFileError: As :func:`conll`.
    """
    counts = {"train": whole("train", train, of="sentences"), "test": whole("test", test, of="sentences")}
    first, second = (_sample(conll(task, split, name=name), count) for split, count in counts.items())
    return first, second


def _sample(sentences: pd.DataFrame, count: int) -> pd.DataFrame:
    """So many sentences, in the order of the hash of their words."""
    chosen = by_hash(sentences.assign(sentence=sentences["words"].map(" ".join)), "sentence")
    return chosen.drop(columns="sentence").head(count).reset_index(drop=True)


def _find(name: str, split: str, path: str | Path | None) -> list[Path]:
    if split not in FILES[name]:
        raise UnknownNameError("split", split, FILES[name], f"These are the splits of {name}.")
    return located(f"{name} ({split})", FILES[name][split], path, HUB.get(name))
