"""A stage of all tasks, whose batches differ in size and in their negatives, with scores that came with the rows."""

from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from sentence_transformers.base.sampler import NoDuplicatesBatchSampler
from test_contrastive import given
from test_scored import published, write
from torch.utils.data import ConcatDataset
from training_tools import (
    StoppedError,
    differing,
    mixed,
    stage,
    steps_counted,
    tiny,
    trained,
    weights,
    write_data,
    write_mixed,
)

from workbook import recipe
from workbook.data import rows as training_data
from workbook.errors import InvalidValueError, UnknownNameError, WorkbookError
from workbook.objectives import Contrastive
from workbook.training import Recipe, Stage, rehearse
from workbook.training.batches import Batches, MixedBatchSampler, batches_of
from workbook.training.recipe import Others
from workbook.training.teacher import Teacher

# The loss, by hand


def vectors(rows=3, columns=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, 8, generator=draw) for _ in range(columns)]


def by_hand(columns, temperature, in_batch, teacher=None):
    """In float64, a query at a time: the cross-entropy of its positive, and the teacher's against its own documents."""
    query, *documents = [[row / row.norm() for row in column.double()] for column in columns]
    total = 0.0
    for row, one in enumerate(query):
        own = [column[row] for column in documents]
        far = [text for column in documents for place, text in enumerate(column) if place != row] if in_batch else []
        scores = torch.stack([one @ text for text in own + far]) / temperature
        total += scores.logsumexp(0) - scores[0]
        if teacher is not None:
            wanted = teacher[row].double().exp() / teacher[row].double().exp().sum()
            total -= (wanted * (scores[: len(own)] - scores[: len(own)].logsumexp(0))).sum()
    return total / len(query)


@pytest.mark.parametrize("cached", [None, 1, 2, 8])
@pytest.mark.parametrize("taught", [False, True])
def test_one_objective_gives_the_loss_of_either_batch(cached, taught):
    loss = Contrastive(given(), temperature=0.1, mini_batch_size=cached)
    assert loss.in_batch
    teacher = 3 * vectors(3, 1, seed=1)[0][:, :2] if taught else None
    values = []
    for in_batch in (True, False, True):
        loss.in_batch = in_batch
        columns = [column.requires_grad_() for column in vectors()]
        expected = by_hand(columns, 0.1, in_batch, teacher)
        wanted = torch.autograd.grad(expected, columns)
        value = loss([{"sentence_embedding": column} for column in columns], teacher)
        value.backward()
        assert value.item() == pytest.approx(expected.item(), rel=1e-5)
        for column, gradient in zip(columns, wanted, strict=True):
            torch.testing.assert_close(column.grad, gradient, atol=1e-5, rtol=1e-4)
        values.append(value.item())
    assert values[0] == values[2] != pytest.approx(values[1], abs=1e-2)


@pytest.mark.parametrize("cached", [None, 2])
@pytest.mark.parametrize("in_batch", [True, False])
def test_a_row_of_another_task_learns_nothing_from_the_other_rows(cached, in_batch):
    """Its gradient is bit by bit the same beside other rows; with in-batch negatives it is not."""
    loss = Contrastive(given(), temperature=0.1, mini_batch_size=cached)
    loss.in_batch = in_batch
    gradients = []
    for seed in (1, 2):
        columns = [torch.cat([own[:1], far[1:]]) for own, far in zip(vectors(), vectors(seed=seed), strict=True)]
        columns = [column.requires_grad_() for column in columns]
        loss([{"sentence_embedding": column} for column in columns]).backward()
        gradients.append(torch.stack([column.grad[0] for column in columns]))
    assert gradients[0].abs().sum() > 0
    assert gradients[0].equal(gradients[1]) != in_batch


def test_batches_without_a_negative_are_refused_by_their_kind():
    loss = Contrastive(given(), temperature=0.1)
    pairs = [{"sentence_embedding": column} for column in vectors(columns=2)]
    assert loss(pairs) > 0
    loss.in_batch = False
    with pytest.raises(InvalidValueError, match="hard negatives in every row"):
        loss(pairs)


# Batches


def load(one):
    return training_data.load(**one.reading(), tokenizer=tiny()[0].tokenizer)


def sampler(epoch=0, seed=0, **options):
    """Of three data sets of 23, 16 and 7 rows, in batches of 6 and 4 rows; the first two have texts to keep apart."""
    texts = [[f"{name} {number // 2 if name == 'b' else number}" for number in range(size)]
             for name, size in (("a", 23), ("b", 16), ("c", 7))]  # fmt: skip
    parts = [training_data.Dataset.from_dict({"query": one}) for one in texts]
    generator = torch.Generator()
    kwargs = {"drop_last": True, "generator": generator, "seed": seed}
    own = [NoDuplicatesBatchSampler(part, batch_size=99, **kwargs) for part in parts]
    given = {"rows": [6, 4, 4], "apart": [True, True, False]} | options
    made = MixedBatchSampler(ConcatDataset(parts), own, generator, seed, **given)
    made.set_epoch(epoch)
    return made


def test_each_data_set_has_batches_of_its_own_size():
    made = sampler()
    found = [*made]
    assert len(found) == len(made) == 3 + 4 + 1
    owners = [{"abc"[(place >= 23) + (place >= 39)] for place in batch} for batch in found]
    assert all(len(own) == 1 for own in owners)
    counted = Counter((*own, len(batch)) for own, batch in zip(owners, found, strict=True))
    assert counted == {("a", 6): 3, ("b", 4): 4, ("c", 4): 1}
    assert [*map(min, owners)] != sorted(map(min, owners))  # the data sets take turns
    rows = [place for batch in found for place in batch]
    assert len({*rows}) == len(rows)
    for batch in found:  # texts stand twice in b, next to one another
        assert len({(place - 23) // 2 for place in batch if 23 <= place < 39}) in (0, 4)


def test_texts_may_repeat_where_rows_are_no_negatives_of_one_another():
    batches = [batch for seed in range(5) for batch in sampler(seed=seed, apart=[True, False, False])]
    assert any(len({(place - 23) // 2 for place in batch}) < 4 for batch in batches if 23 <= batch[0] < 39)


def test_the_order_follows_from_seed_and_epoch():
    assert [*sampler()] == [*sampler()]
    again = sampler()
    first = [*again]
    assert [*again] == first  # a sampler that is read again, as a resume does
    again.set_epoch(1)
    assert [*again] == [*sampler(epoch=1)] != first
    assert [*sampler(seed=1)] != first


@pytest.mark.parametrize("processes", [1, 2])
def test_the_batches_are_the_same_on_two_devices(processes):
    for epoch in range(3):
        parts = [[*sampler(epoch, process=one, processes=processes)] for one in range(processes)]
        assert {len(part) for part in parts} == {8}
        assert [[place for part in batch for place in part] for batch in zip(*parts, strict=True)] == [*sampler(epoch)]
        assert all(len({*map(len, batch)}) == 1 for batch in zip(*parts, strict=True))


def test_what_the_batches_of_a_stage_hold(own, tmp_path):
    one = mixed(tmp_path)
    assert batches_of(one, load(one)) == Batches({"both/1": 6, "both/2": 4}, {"both/2": False}, mixed=True)
    alike = one.model_copy(update={"others": Others(batch_size=8, in_batch=True)})
    assert batches_of(alike, load(alike)) == Batches({"both/1": 6, "both/2": 8}, {"both/2": True}, mixed=True)
    plain = stage(own, "contrastive")
    assert batches_of(plain, load(plain)) == Batches({"texts": 6}, {}, mixed=False)
    large = mixed(tmp_path, others={"batch_size": 17})
    with pytest.warns(UserWarning, match="both/2 hold fewer rows than a batch of 17 and are never read"):
        batches_of(large, load(large))
    with pytest.raises(InvalidValueError, match=r"no more rows than a data set has \(both/1: 24, both/2: 16\)"):
        batches_of(large.model_copy(update={"batch_size": 25}), load(large))


def test_both_sizes_are_divided_over_the_devices(own, tmp_path, monkeypatch):
    monkeypatch.setattr("workbook.training.batches.PartialState", lambda: type("Two", (), {"num_processes": 2}))
    one = mixed(tmp_path)
    data = load(one)
    batches_of(one, data)
    for field, changes in (("batch_size", {"batch_size": 5}), ("others.batch_size", {"others": {"batch_size": 3}})):
        with pytest.raises(InvalidValueError, match=f"^{field}: expected a multiple of 1 micro-batches on 2 devices"):
            batches_of(mixed(tmp_path, **changes), data)


# Training


@contextmanager
def batches_seen(monkeypatch):
    """Of each batch that is trained on, in the block: texts by row, labels, and whether rows are negatives."""
    seen, kept = [], Contrastive.forward

    def looked_at(self, features, labels=None):
        columns = [self.model.tokenizer.batch_decode(one["input_ids"], skip_special_tokens=True) for one in features]
        seen.append((list(zip(*columns, strict=True)), labels, self.in_batch))
        return kept(self, features, labels)

    with monkeypatch.context() as patch:
        patch.setattr(Contrastive, "forward", looked_at)
        yield seen


def test_an_epoch_of_a_mixed_stage(own, tmp_path, monkeypatch):
    """Batches of both tasks; stored scores are labels in retrieval, row by row, and nothing is elsewhere."""
    one = mixed(tmp_path, steps=8)
    with batches_seen(monkeypatch) as seen:
        done = trained(one)
    assert differing(done.model, tiny(), 1e-3)
    assert done.history["loss"].notna().all()
    assert Counter((len(rows), in_batch, labels is None) for rows, labels, in_batch in seen) == {
        (6, True, False): 4,
        (4, False, True): 4,
    }
    known = {row["query"]: row["scores"] for row in load(one).datasets["both/1"]}
    for rows, labels, in_batch in seen:
        assert {len(row) for row in rows} == {4}
        if in_batch:
            found = [next(known[query] for query in known if query in row[0]) for row in rows]
            torch.testing.assert_close(labels, torch.tensor(found))
        else:
            assert all(row[1] in ("even", "odd") for row in rows)
    with batches_seen(monkeypatch) as again:
        trained(one, model=tiny("mean"))
    assert [rows[0][1:] for rows, *_ in again] == [rows[0][1:] for rows, *_ in seen]


def test_a_stage_of_other_tasks_alone_is_one_without_in_batch_negatives(own, tmp_path):
    """A batch is all of the data, so that the order of rows counts for nothing but rounding."""
    rows = published("topics", count=8, negatives=2, kind="symmetric_clustering")
    data = {"contrastive": str(write(tmp_path / "topics.jsonl", rows))}
    sizes = {"steps": 3, "batch_size": 8, "max_length": 96}
    cached = {"temperature": 0.1, "mini_batch_size": 3}
    plain = trained(stage(data, "contrastive", options={"temperature": 0.1, "in_batch": False}, **sizes))
    for options in ({"temperature": 0.1}, cached):
        told = trained(stage(data, "contrastive", others={"batch_size": 8}, options=options, **sizes))
        assert differing(told.model, plain.model, 1e-4) == []
        assert list(told.history["tokens"]) == list(plain.history["tokens"])
    alike = trained(stage(data, "contrastive", others={"batch_size": 8, "in_batch": True}, **sizes))
    assert differing(alike.model, plain.model, 1e-3)


def test_stopped_inside_an_epoch_it_ends_bit_by_bit_the_same(own, tmp_path, monkeypatch):
    """In the first epoch and in the second, whose order is another."""
    one = mixed(tmp_path, steps=12)
    with batches_seen(monkeypatch) as seen:
        whole = trained(one)
    for stop_at in (4, 12):
        monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / f"stopped-{stop_at}"))
        with steps_counted(monkeypatch, stop_at), pytest.raises(StoppedError):
            trained(one, save_every=3)
        with batches_seen(monkeypatch) as left, steps_counted(monkeypatch) as steps:
            resumed = trained(one, save_every=3)
        assert steps == list(range(stop_at - (stop_at - 1) % 3, 13))
        assert [rows for rows, *_ in left] == [rows for rows, *_ in seen[steps[0] - 1 :]]
        assert differing(resumed.model, whole.model) == []
        columns = ["step", "loss", "learning_rate", "gradient_norm", "tokens"]
        assert resumed.history[columns].equals(whole.history[columns])
    assert [rows for rows, *_ in seen[:4]] != [rows for rows, *_ in seen[8:]]


def test_a_teacher_scores_retrieval_alone(own, tmp_path, monkeypatch):
    asked, scores = [], Teacher.scores

    def counted(self, queries, documents):
        asked.append((queries, documents))
        return scores(self, queries, documents)

    monkeypatch.setattr(Teacher, "scores", counted)
    with batches_seen(monkeypatch) as seen:
        trained(mixed(tmp_path, teacher="minilm", steps=8))
    assert Counter((labels is None, in_batch) for _, labels, in_batch in seen) == {(False, True): 4, (True, False): 4}
    assert len(asked) == 4
    assert all(len(queries) == 6 and {*map(len, documents)} == {3} for queries, documents in asked)


def test_stored_scores_are_learnt_from(own, tmp_path):
    """Without tasks told apart too, which is said of data sets that have none; other scores give other weights."""

    def done(teacher):
        return trained(stage({"contrastive": str(path)}, "contrastive", teacher=teacher, steps=3, max_length=64))

    path = Path(write_mixed(tmp_path))
    with pytest.warns(UserWarning, match="^both/2: no scores of a teacher in the rows: trained without"):
        scored = done("stored")
    bare = done(None)
    path = tmp_path / "other" / "both.jsonl"
    path.parent.mkdir()
    path.write_text((tmp_path / "both.jsonl").read_text().replace('"pos_scores": [3.', '"pos_scores": [0.'))
    with pytest.warns(UserWarning, match="^both/2"):
        other = done("stored")
    again = done(None)
    assert differing(scored.model, bare.model)
    assert differing(other.model, scored.model)
    keys = [one.manifest["stages"]["contrastive"]["key"] for one in (scored, other, bare, again)]
    assert len({*keys}) == 3
    assert keys[2] == keys[3]


def test_a_batch_of_the_longest_rows(own, tmp_path):
    """Of either task; rows of classes may share their labels in a batch."""
    table = rehearse(tiny(), Recipe(stages=(mixed(tmp_path),)))
    assert table["rows"].tolist() == [6]
    rows = published("reviews", count=6, negatives=1, kind="symmetric_class")
    rows = [row | {"pos": ["good"], "neg": ["bad"], "query": f"{row['query']} {'long ' * 40}"} for row in rows]
    for row in rows:
        row |= {"pos_scores": None, "neg_scores": None}
    both = (tmp_path / "both.jsonl").read_text()
    write(tmp_path / "long.jsonl", rows)
    (tmp_path / "long.jsonl").write_text(both + (tmp_path / "long.jsonl").read_text())
    one = mixed(tmp_path).model_copy(update={"data": str(tmp_path / "long.jsonl"), "max_length": 300})
    assert rehearse(tiny(), Recipe(stages=(one,)))["rows"].tolist() == [4]


def test_lens_as_published_on_data_in_the_published_form(own, tmp_path, monkeypatch):
    """The recipe of scale paper with fewer rows: its source, its stored scores, both batch sizes, GradCache."""
    monkeypatch.setenv("WORKBOOK_DATA", str(tmp_path))
    place = tmp_path / "bge-full-data" / "data"
    write(place / "nq-00000-of-00001.parquet", published("nq", count=8))
    write(place / "imdb.jsonl", published("imdb", count=6, negatives=1, kind="symmetric_class"))
    small = {"steps": 4, "batch_size": 4, "others.batch_size": 3, "max_length": 96, "options.mini_batch_size": 2}
    changes = {f"distilled.{field}": value for field, value in small.items()}
    (one,) = recipe("lens", "paper", "tiny-llama").changed(changes).stages
    assert (one.data, one.teacher, one.negatives, one.others.in_batch) == ("bge-full", "stored", 7, False)
    model = tiny("lens")
    head = model[1].head.clone()
    with batches_seen(monkeypatch) as seen:
        done = trained(one, model=model)
    assert Counter((len(rows), len(rows[0]), in_batch) for rows, _, in_batch in seen) == {
        (4, 9, True): 2,
        (3, 3, False): 2,
    }
    assert done.history["loss"].notna().all()
    assert model[1].head.equal(head)
    assert differing(weights(model), tiny("lens"))


# As a recipe


REQUIRED = {
    "name": "s",
    "objective": "contrastive",
    "steps": 1,
    "batch_size": 8,
    "max_length": 8,
    "learning_rate": 1e-3,
}


def test_a_stage_without_others_is_known_as_before():
    plain, told = Stage(**REQUIRED), Stage(**REQUIRED, others=Others(batch_size=8))
    assert "others" not in plain.resolved()
    assert told.resolved()["others"] == {"batch_size": 8, "in_batch": False}
    assert len({Recipe(stages=(one,)).fingerprint() for one in (plain, told)}) == 2
    changed = Recipe(stages=(plain,)).changed({"s.others.batch_size": 4, "s.others.in_batch": True})
    assert changed.stages[0].others == Others(batch_size=4, in_batch=True)
    assert Recipe(stages=(told,)).changed({"s.others": None}).stages == (plain,)
    with pytest.raises(UnknownNameError, match=r"Unknown field of s\.others 'rows'"):
        Recipe(stages=(plain,)).changed({"s.others.rows": 4})
    with pytest.raises(InvalidValueError, match=r"s\.others\.batch_size: expected greater than 0, got 0"):
        Recipe(stages=(plain,)).changed({"s.others.batch_size": 0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"others": {"batch_size": 4}, "blend": True}, "others: expected a contrastive stage .*, got a blend of all"),
        ({"others": {"batch_size": 4}, "objective": "simcse"}, "others: expected a contrastive stage .*, got simcse"),
        ({"others": {"batch_size": 4}, "accumulation": 2}, "accumulation: expected 1 beside others.*mini_batch_size"),
        ({"teacher": "stored", "blend": True}, "teacher: expected a contrastive stage .*, got a blend of all tasks"),
        ({"teacher": "stored", "objective": "gritlm"}, "teacher: expected a contrastive stage .*, got gritlm"),
    ],
)
def test_fields_that_do_not_go_together(changes, message):
    plain = Recipe(stages=(Stage(**REQUIRED),))
    with pytest.raises(WorkbookError, match=message):
        plain.changed({f"s.{name}": value for name, value in changes.items()})


def test_data_that_do_not_suit_the_stage(own, tmp_path):
    pairs = write_data(tmp_path)
    with pytest.raises(InvalidValueError, match=r"Stage contrastive: training data .*, got 'retrieval alone'"):
        trained(stage(pairs, "contrastive", others={"batch_size": 4}))
    with pytest.raises(InvalidValueError, match=r"Stage contrastive: training data .*teacher's scores .*, got 'none'"):
        trained(stage(pairs, "contrastive", teacher="stored"))
    lines = [row | {"task": "sts"} for row in ({"query": f"q {n}", "positive": f"p {n}"} for n in range(9))]
    bare = {"contrastive": str(write(tmp_path / "bare.jsonl", lines))}
    with pytest.raises(
        InvalidValueError, match="Stage contrastive: training data: expected hard negatives in every row"
    ):
        trained(stage(bare, "contrastive", others={"batch_size": 4}))
    with pytest.raises(InvalidValueError, match=r"others\.batch_size: expected no more rows .*texts|bare.*, got 10"):
        trained(stage(bare, "contrastive", others={"batch_size": 10, "in_batch": True}))
    alone = [row | {"negative": "n"} for row in lines]
    taught = {"contrastive": str(write(tmp_path / "taught.jsonl", alone))}
    with pytest.raises(InvalidValueError, match="teacher: expected rows of retrieval, which alone are scored"):
        trained(stage(taught, "contrastive", others={"batch_size": 4}, teacher="minilm"))
    alike = trained(stage(bare, "contrastive", others={"batch_size": 4, "in_batch": True}, steps=1))
    assert alike.history["loss"].notna().all()
    with pytest.raises(InvalidValueError, match="Stage contrastive: teacher: expected a contrastive stage whose data"):
        trained(mixed(tmp_path, negatives=0))
