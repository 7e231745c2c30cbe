"""The word-level probe: what a linear classifier can read from the state of a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sentence_transformers.util import batch_to_device
from torch import nn
from tqdm.auto import tqdm
from transformers import DataCollatorWithPadding

from ..corpora.roles import NO_ROLE
from ..errors import InvalidValueError, whole
from ..templates import CONTEXT
from .states import decoder_of, reading

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..modules import Decoder


@torch.no_grad()
def word_states(
    model: SentenceTransformer, words: Sequence[Sequence[str]], *, shifted: bool = False, batch_size: int = 32
) -> list[np.ndarray]:
    """The states of words: for each the mean of the last hidden states of its tokens, or of those one to their left.

    A model trained to predict a token from the state before it (MNTP) keeps what it knows of a word there. The words
    of a sentence are joined by single spaces. A token belongs to a word if it covers any of its characters; a space
    that is a token of its own belongs to none. The tokenizer's BOS token (EOS if there is none) is put in front,
    whatever the model's template says. So the first word has a state to its left, shifted or not the input is the same,
    and no word's state is that of a first token, which in decoders differs from all others. Contextual tokens, if the
    model reads any, have read the whole sentence and stand between the two.

    Args:
        model: An embedder; its pooling and template are not used.
        words: Sentences, each a list of words.
        shifted: Take the states one place to the left.
        batch_size: Sentences per batch.

    Returns:
        For each sentence float32 (words, dim).

    Raises:
        InvalidValueError: No sentences, a sentence without words, a word without a token (blank, for instance), a
            sentence of more tokens than the model's ``max_length``, or a model that does not begin with a Decoder.

    Source: LLM2Vec, appendix D.1.3.
    """
    module = decoder_of(model, words, "words")
    rows, places = _tokens(module, words)
    collate, context = DataCollatorWithPadding(module.tokenizer), module.contextual_tokens
    found = {}
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))  # sentences of like length need little padding
    with reading(module, module.attention):
        for start in tqdm(range(0, len(rows), batch_size), desc="states of words", leave=False, disable=None):
            batch = order[start : start + batch_size]
            read = [[rows[index][0], *[CONTEXT] * context, *rows[index][1:]] for index in batch]
            features = dict(collate([{"input_ids": ids} for ids in read]))
            if context:
                made = module.preprocess([" ".join(words[index]) for index in batch])
                features = {name: value for name, value in made.items() if name not in features} | features
                features["context_mask"] = (features["input_ids"] == CONTEXT).long()
            hidden = module(batch_to_device(features, model.device))["token_embeddings"].float().cpu()
            for index, states, mask in zip(batch, hidden, features["attention_mask"].bool().cpu(), strict=True):
                states = states[mask][context:]  # what stands to the left, then those that the places count
                states = (states[:-1] if shifted else states[1:]).numpy()
                found[index] = np.stack([states[tokens].mean(axis=0) for tokens in places[index]])
    return [found[index] for index in range(len(rows))]


def word_probe(
    model: SentenceTransformer,
    train: pd.DataFrame,
    test: pd.DataFrame,
    *,
    shifted: bool = False,
    seed: int = 0,
    steps: int = 1500,
    batch_size: int = 8,
    learning_rate: float = 5e-4,
    dropout: float = 0.1,
) -> pd.DataFrame:
    """Tag words with a linear classifier with dropout, trained on frozen states with AdamW in float32.

    Words with the tag ``""`` are context: read, but neither trained on nor scored. The mean of ``correct`` is the
    accuracy; its interval has to draw whole sentences, since the words of one are not independent. The global random
    states stay as they were.

    Args:
        model: An embedder; its weights don't change.
        train: Columns ``words`` and ``tags``, one row per sentence, lists of equal length, as from
            `workbook.corpora.roles` and `workbook.corpora.public.conll`.
        test: The same. A tag that is not in ``train`` can't be predicted, so its words count as wrong.
        shifted: Read each word one place to its left (:func:`word_states`), for models trained by MNTP.
        seed: Of the classifier's initialisation, the order of the sentences and the dropout.
        steps: Number of training batches; sentences are reordered every time all have been seen.
        batch_size: Sentences per batch.
        learning_rate: Constant learning rate, this project's choice: the paper gives no schedule.
        dropout: Share of the features of a state that are dropped in training.

    Returns:
        One row per scored word of ``test``, in order: ``sentence`` (its index, from 0), ``word``, ``tag``,
        ``predicted``, ``correct`` (1.0 or 0.0).

    Raises:
        InvalidValueError: A missing column, a sentence with more words than tags or fewer, nothing to score, a single
            tag to learn, steps or a batch size that are not positive and whole, or as :func:`word_states`.

    Source: LLM2Vec, section 3.1 and appendix D.1.3, which gives steps, batch size, learning rate and dropout.
    """
    steps, batch_size = whole("steps", steps), whole("batch_size", batch_size)
    learnt, scored = _scored_words("train", train), _scored_words("test", test)
    labels, tags = pd.factorize(learnt["tag"], sort=True)
    if len(tags) < 2:
        raise InvalidValueError("train", "words of at least two tags", tags.tolist())
    states = _states_of(model, train, learnt, shifted)
    sentences = list(learnt.reset_index().groupby("sentence").indices.values())
    labels = torch.from_numpy(labels)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        classifier = nn.Linear(states.shape[1], len(tags))
        optimizer = torch.optim.AdamW(classifier.parameters(), lr=learning_rate)
        rounds = -(-steps * batch_size // len(sentences))
        order = torch.cat([torch.randperm(len(sentences)) for _ in range(rounds)])[: steps * batch_size]
        for batch in order.view(steps, batch_size).tolist():
            rows = np.concatenate([sentences[index] for index in batch])
            loss = F.cross_entropy(classifier(F.dropout(states[rows], dropout)), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        predicted = classifier(_states_of(model, test, scored, shifted)).argmax(dim=1)
    scored = scored.reset_index(drop=True)
    scored["predicted"] = tags.take(predicted.numpy())
    scored["correct"] = (scored["predicted"] == scored["tag"]).astype(float)
    return scored


def word_guesses(train: pd.DataFrame, test: pd.DataFrame) -> dict[str, float]:
    """Accuracies without any model, in points: the baselines of :func:`word_probe`.

    Args:
        train: Columns ``words`` and ``tags``, as for :func:`word_probe`.
        test: The same.

    Returns:
        ``commonest tag``: always the commonest tag of ``train``. ``word alone``: for each word its commonest tag in
        ``train`` (of several the first in the alphabet), or the commonest tag of all for a word that is not there.

    Raises:
        InvalidValueError: A missing column, a sentence with more words than tags or fewer, or nothing to score.
    """
    learnt, scored = _scored_words("train", train), _scored_words("test", test)
    commonest = learnt["tag"].mode()[0]
    alone = scored["word"].map(learnt.groupby("word")["tag"].agg(lambda tags: tags.mode()[0])).fillna(commonest)
    guessed = {"commonest tag": commonest, "word alone": alone}
    return {name: float(100 * (scored["tag"] == tag).mean()) for name, tag in guessed.items()}


def _tokens(module: Decoder, words: Sequence[Sequence[str]]) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Ids of each sentence after the front token, and for each word the indices of its tokens, from 0 after that."""
    tokenizer = module.tokenizer
    for index, sentence in enumerate(words):
        if isinstance(sentence, str) or len(sentence) == 0 or not all(isinstance(word, str) for word in sentence):
            raise InvalidValueError(f"sentence {index}", "a list of words, at least one", sentence)
    encoded = tokenizer(
        [" ".join(sentence) for sentence in words],
        add_special_tokens=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    front = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    rows = [[front, *ids] for ids in encoded["input_ids"]]
    places = []
    for index, (sentence, ids, offsets) in enumerate(zip(words, rows, encoded["offset_mapping"], strict=True)):
        if len(ids) > module.max_length:
            raise InvalidValueError(
                f"sentence {index}",
                f"at most {module.max_length} tokens with the one in front, the model's max_length",
                len(ids),
                "Split the sentence, or build the model with a larger max_length.",
            )
        places.append([])
        end = -1
        for word in sentence:
            start, end = end + 1, end + 1 + len(word)
            tokens = [number for number, (a, b) in enumerate(offsets) if a < end and b > start]
            if not tokens:
                raise InvalidValueError(
                    f"sentence {index}", "words of at least one token", word, "Drop it, or its tag."
                )
            places[-1].append(tokens)
    return rows, places


def _scored_words(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The words that have a tag: columns sentence, word, tag; the index counts all words of the frame."""
    if not {"words", "tags"} <= set(frame.columns):
        raise InvalidValueError(name, "a frame with the columns words, tags", list(frame.columns))
    for index, (words, tags) in enumerate(zip(frame["words"], frame["tags"], strict=True)):
        if len(words) != len(tags):
            raise InvalidValueError(f"{name}, sentence {index}", f"{len(words)} tags, one a word", tags)
    table = pd.DataFrame({"sentence": range(len(frame)), "word": list(frame["words"]), "tag": list(frame["tags"])})
    table = table.explode(["word", "tag"], ignore_index=True)
    table = table[table["tag"] != NO_ROLE]
    if table.empty:
        raise InvalidValueError(name, "at least one word with a tag", f"{len(frame)} sentences without one")
    return table


def _states_of(model: SentenceTransformer, frame: pd.DataFrame, words: pd.DataFrame, shifted: bool) -> torch.Tensor:
    """States of some words of a frame, float32 (words, dim)."""
    states = np.concatenate(word_states(model, frame["words"].tolist(), shifted=shifted))
    return torch.from_numpy(states[words.index])
