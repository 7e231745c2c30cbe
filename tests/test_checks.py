"""Exercise checks: they diagnose, and never raise."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from test_curation import teacher
from test_notebooks import SPOILS
from test_notebooks import said as check_said
from torch.nn import functional as F

import workbook
from workbook import backbones, checks, evaluation, probes
from workbook.checks import anchor, causal2vec, compare, compress, efficiency, lens, llm2vec, nv_embed
from workbook.data.curation import mine
from workbook.errors import InvalidValueError
from workbook.objectives import Reconstruction
from workbook.probes import false_negatives


@checks.exercise(2, hint="Look at the mask.")
def exercise_2(answer):
    checks.expect("answer()", answer(), np.array([1.0, 2.0]))


def said(capsys, answer, check=exercise_2):
    assert check(answer) is None
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "right", [[1, 2], np.array([1, 2]), torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([1, 2.0]).bfloat16()]
)
def test_right_answers(capsys, right):
    assert said(capsys, lambda: right) == "Exercise 2: correct.\n"


@pytest.mark.parametrize(
    ("wrong", "diagnosis"),
    [
        (lambda: [1.0, 3.0], "expected [1., 2.], got [1., 3.]"),
        (lambda: [[1.0, 2.0]], "expected shape (2,), got shape (1, 2)"),
        (lambda: None, "Is a `return` missing?"),
        (lambda: [1.0, float("nan")], "not finite"),
        (lambda: "12", "expected numbers of shape (2,), got str"),
        (lambda: [[1.0], [1.0, 2.0]], "expected numbers of shape (2,), got list"),
        (lambda: 1 / 0, "It raised ZeroDivisionError"),
        (lambda x: x, "It raised TypeError"),
    ],
)
def test_wrong_answers_are_diagnosed(capsys, wrong, diagnosis):
    text = said(capsys, wrong)
    assert text.startswith("Exercise 2: not yet. ")
    assert diagnosis in text
    assert text.endswith("Hint: Look at the mask.\n")


def test_stub(capsys):
    def stub():
        raise NotImplementedError

    assert said(capsys, stub) == "Exercise 2: not attempted yet.\n"


@pytest.mark.parametrize(
    ("expected", "wrong"), [("mean", "sum"), (True, 1), (True, np.False_), (["a", "b"], ["a"]), ({"a": 1}, {"a": 2})]
)
def test_words_and_collections(capsys, expected, wrong):
    @checks.exercise(1)
    def exercise_1(answer):
        checks.expect("answer", answer, expected)

    assert said(capsys, expected, exercise_1) == "Exercise 1: correct.\n"
    assert said(capsys, wrong, exercise_1).startswith("Exercise 1: not yet. answer: expected")


# The exercises of notebook 02


def shifted_labels(input_ids, chosen):
    places = chosen.nonzero().squeeze(1)
    places = places[places > 0]
    return places - 1, input_ids[places]


def simcse_loss(first, second, temperature):
    cosines = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T
    return F.cross_entropy(cosines / temperature, torch.arange(len(first)))


def word_means(states, spans, shifted):
    return torch.stack([states[start - shifted : end - shifted].mean(0) for start, end in spans])


def at_the_mask(input_ids, chosen):
    positions, labels = shifted_labels(input_ids, chosen)
    return positions + 1, labels


def at_the_label_before(input_ids, chosen):
    positions, _ = shifted_labels(input_ids, chosen)
    return positions, input_ids[positions]


def with_index_0(input_ids, chosen):
    places = chosen.nonzero().squeeze(1)
    return places - 1, input_ids[places]


def plain_products(first, second, temperature):
    return F.cross_entropy(first @ second.T / temperature, torch.arange(len(first)))


def reject(capsys, check, right, wrong):
    assert said(capsys, right, check).endswith(": correct.\n")
    for mistake, answer in wrong.items():
        text = said(capsys, answer, check)
        assert re.search(r"not yet\. (?!It raised).*\nHint: ", text), (mistake, text)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (
            llm2vec.exercise_1,
            shifted_labels,
            {
                "at i instead of i - 1": at_the_mask,
                "the token before as the label": at_the_label_before,
                "index 0 kept": with_index_0,
                "positions alone": lambda *a: shifted_labels(*a)[0],
                "the other order": lambda *a: shifted_labels(*a)[::-1],
            },
        ),
        (
            llm2vec.exercise_2,
            simcse_loss,
            {
                "symmetric": lambda a, b, t: (simcse_loss(a, b, t) + simcse_loss(b, a, t)) / 2,
                "from second to first": lambda a, b, t: simcse_loss(b, a, t),
                "not normalised": plain_products,
                "one side normalised": lambda a, b, t: plain_products(F.normalize(a, dim=1), b, t),
                "normalised over the batch": lambda a, b, t: plain_products(
                    F.normalize(a, dim=0), F.normalize(b, dim=0), t
                ),
                "temperature as a factor": lambda a, b, t: simcse_loss(a, b, 1 / t),
                "temperature left out": lambda a, b, t: simcse_loss(a, b, 1),
                "summed": lambda a, b, t: simcse_loss(a, b, t) * len(a),
                "no negatives": lambda a, b, t: -F.cosine_similarity(a, b).mean() / t,
            },
        ),
        (
            llm2vec.exercise_3,
            word_means,
            {
                "never shifted": lambda states, spans, shifted: word_means(states, spans, False),
                "always shifted": lambda states, spans, shifted: word_means(states, spans, True),
                "shifted right": lambda states, spans, shifted: word_means(states, spans, -shifted),
                "end counted in": lambda states, spans, shifted: word_means(
                    states, [(a, b + 1) for a, b in spans], shifted
                ),
                "last token": lambda states, spans, shifted: torch.stack([states[b - 1 - shifted] for _, b in spans]),
                "summed": lambda states, spans, shifted: torch.stack(
                    [states[a - shifted : b - shifted].sum(0) for a, b in spans]
                ),
            },
        ),
    ],
    ids=["shifted_labels", "simcse_loss", "word_means"],
)
def test_exercises_of_notebook_02(capsys, check, right, wrong):
    reject(capsys, check, right, wrong)


# The exercises of notebook 03


def latent_read(states, latents):
    return (states @ latents.T).softmax(dim=-1) @ latents


def below_margin(scores, positive, margin=0.95):
    order = scores.argsort(descending=True).tolist()
    least = scores[positive].min()
    return [place for place in order if place not in positive and scores[place] <= margin * least]


def below(limit, passes=torch.le, own=False):
    """The answer with another limit or comparison, or with the positives among the candidates."""

    def answer(scores, positive, margin=0.95):
        order = scores.argsort(descending=True).tolist()
        fits = passes(scores, limit(scores, positive, margin))
        return [place for place in order if fits[place] and (own or place not in positive)]

    return answer


def chance(classes, batch_size, negatives):
    none = (1 - 1 / classes) * (1 - 1 / (classes - 1)) ** negatives
    return 1 - none ** (batch_size - 1)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (
            nv_embed.exercise_1,
            latent_read,
            {
                "softmax over the states": lambda h, c: (h @ c.T).softmax(dim=0) @ c,
                "scaled": lambda h, c: (h @ c.T / h.shape[1] ** 0.5).softmax(dim=-1) @ c,
                "no softmax": lambda h, c: h @ c.T @ c,
                "exponentials not normalised": lambda h, c: (h @ c.T).exp() @ c,
                "cosines": lambda h, c: (F.normalize(h, dim=1) @ F.normalize(c, dim=1).T).softmax(dim=-1) @ c,
                "weights alone": lambda h, c: (h @ c.T).softmax(dim=-1),
                "the nearest latent": lambda h, c: c[(h @ c.T).argmax(dim=-1)],
                "with the residual": lambda h, c: h + latent_read(h, c),
                "mean of the latents": lambda h, c: c.mean(0).expand(len(h), -1),
                "already pooled": lambda h, c: latent_read(h, c).mean(0),
                "self-attention": lambda h, c: latent_read(h, h),
            },
        ),
        (
            nv_embed.exercise_2,
            below_margin,
            {
                "the best positive": below(lambda s, p, m: m * s[p].max()),
                "the mean positive": below(lambda s, p, m: m * s[p].mean()),
                "the first positive": below(lambda s, p, m: m * s[p[0]]),
                "the last positive": below(lambda s, p, m: m * s[p[-1]]),
                "one positive alone": lambda s, p, m=0.95: below_margin(s, p[:1], m),
                "positives included": below(lambda s, p, m: m * s[p].min() + 0 * s, own=True),
                "positives pass without a margin": below(lambda s, p, m: s[p].min(), own=True),
                "additive": below(lambda s, p, m: s[p].min() - (1 - m)),
                "no margin": below(lambda s, p, m: s[p].min()),
                "divided": below(lambda s, p, m: s[p].min() / m),
                "the limit left out": below(lambda s, p, m: m * s[p].min(), torch.lt),
                "those above": below(lambda s, p, m: m * s[p].min(), torch.ge),
                "the paper's margin always": lambda s, p, m=0.95: below_margin(s, p),
                "easiest first": lambda s, p, m=0.95: below_margin(s, p, m)[::-1],
                "in their places' order": lambda s, p, m=0.95: sorted(below_margin(s, p, m)),
                "scores": lambda s, p, m=0.95: s[below_margin(s, p, m)],
                "the hardest alone": lambda s, p, m=0.95: below_margin(s, p, m)[:1],
                "all but the positives": below(lambda s, p, m: s.max()),
            },
        ),
        (
            nv_embed.exercise_3,
            chance,
            {
                "the row itself counted": lambda k, b, n: chance(k, b + 1, n),
                "positives alone": lambda k, b, n: chance(k, b, 0),
                "negatives as independent as positives": lambda k, b, n: 1 - (1 - 1 / k) ** ((b - 1) * (1 + n)),
                "negatives of k classes": lambda k, b, n: 1 - ((1 - 1 / k) ** (1 + n)) ** (b - 1),
                "the expected number": lambda k, b, n: (b - 1) * (1 + n) / k,
                "at most 1 of it": lambda k, b, n: min(1, (b - 1) * (1 + n) / k),
                "the chance of none": lambda k, b, n: 1 - chance(k, b, n),
                "labels": lambda k, b, n: false_negatives(k, b, n, documents="labels")["chance"],
                "the share": lambda k, b, n: 1 / k,
                "two rows": lambda k, b, n: chance(k, 2, n),
                "a classmate somewhere in the batch": lambda k, b, n: 1 - (1 - 1 / k) ** b,
            },
        ),
    ],
    ids=["latent_read", "below_margin", "false_negative_chance"],
)
def test_exercises_of_notebook_03(capsys, check, right, wrong):
    reject(capsys, check, right, wrong)


def test_the_chance_of_the_exercise_is_the_librarys(capsys):
    def answer(*given):
        return false_negatives(*given)["chance"]

    assert said(capsys, answer, nv_embed.exercise_3) == "Exercise 3: correct.\n"


def test_tensors_do_as_well_as_lists(capsys):
    def answer(*given):
        return torch.tensor(below_margin(*given), dtype=torch.long)

    assert said(capsys, answer, nv_embed.exercise_2) == "Exercise 2: correct.\n"


def test_the_margin_of_the_exercise_is_the_librarys(capsys):
    """By mining, from a teacher whose vectors are the scores: cosines with a query along one axis."""

    def mined(scores, positive, margin=0.95):
        names = [f"d{place}" for place in range(len(scores))]
        vectors = {
            name: np.array([s, (1 - s * s) ** 0.5], dtype=np.float32)
            for name, s in zip(names, scores.tolist(), strict=True)
        }
        vectors["q"] = np.float32([1, 0])
        pairs = pd.DataFrame({"query": "q", "positive": [names[place] for place in positive]})
        margin = min(1.0, margin + 1e-6)  # a cosine is not quite the score it was made from
        found = []
        for negatives in range(1, len(names)):
            try:
                rows = mine(pairs, teacher(vectors), negatives=negatives, margin=margin, corpus=names)
            except InvalidValueError:
                break
            found = [int(name[1:]) for name in rows.iloc[0, 2:]]
        return found

    assert said(capsys, mined, nv_embed.exercise_2) == "Exercise 2: correct.\n"


# The exercises of notebook 04


def weights(logits, share, zero=lambda ranked, count: ranked[count]):
    ranked = logits.flatten().sort(descending=True).values
    return torch.log1p((logits - zero(ranked, round(share * len(ranked)))).clamp(min=0))


def random_clusters(assignment, seed):
    return assignment[torch.randperm(len(assignment), generator=torch.Generator().manual_seed(seed))]


def renamed(assignment, seed):
    names = torch.randperm(int(assignment.max()) + 1, generator=torch.Generator().manual_seed(seed))
    return names[assignment]


def prune(weights, top):
    left = (weights - weights.mean(dim=0)).clamp(min=0)
    best = left.topk(top, dim=1)
    return torch.zeros_like(left).scatter(1, best.indices, best.values)


def largest(weights, top):
    best = weights.topk(top, dim=1)
    return torch.zeros_like(weights).scatter(1, best.indices, best.values)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (
            lens.exercise_1,
            weights,
            {
                "one place early": lambda x, s: weights(x, s, lambda ranked, n: ranked[n - 1]),
                "the paper's zero": lambda x, s: x.clamp(min=0).log1p(),
                "the mean as zero": lambda x, s: (x - x.mean()).clamp(min=0).log1p(),
                "a zero for each text": lambda x, s: torch.stack([weights(row, s) for row in x]),
                "the share that is not active": lambda x, s: weights(x, 1 - s) if s != 0.5 else weights(x, 0.25),
                "no log": lambda x, s: weights(x, s).expm1(),
                "cut, not shifted": lambda x, s: x.clamp(min=0).log1p() * (weights(x, s) > 0),
                "what is above, as it is": lambda x, s: weights(x, s) > 0,
            },
        ),
        (
            lens.exercise_2,
            random_clusters,
            {
                "as they are": lambda a, s: a,
                "renamed": renamed,
                "other sizes": lambda a, s: torch.randint(3, a.shape, generator=torch.Generator().manual_seed(s)),
                "the seed does not count": lambda a, s: random_clusters(a, 7),
                "no seed": lambda a, s: a[torch.randperm(len(a))],
                "rolled": lambda a, s: a.roll(2 * s),
                "reversed": lambda a, s: a.flip(0),
            },
        ),
        (
            lens.exercise_3,
            prune,
            {
                "no idf": largest,
                "cut first": lambda w, n: (largest(w, n) - w.mean(dim=0)).clamp(min=0),
                "divided": lambda w, n: largest(w / w.mean(dim=0).clamp(min=1e-9), n),
                "below 0 stays": lambda w, n: largest(w - w.mean(dim=0), n),
                "the mean of the document": lambda w, n: largest((w - w.mean(dim=1, keepdim=True)).clamp(min=0), n),
                "nothing cut": lambda w, n: (w - w.mean(dim=0)).clamp(min=0),
                "one more": lambda w, n: prune(w, min(n + 1, w.shape[1])),
                "the weights before": lambda w, n: w * (prune(w, n) > 0),
            },
        ),
    ],
    ids=["weights", "random_clusters", "prune"],
)
def test_exercises_of_notebook_04(capsys, check, right, wrong):
    reject(capsys, check, right, wrong)


@pytest.mark.parametrize(
    ("check", "right"), [(lens.exercise_1, weights), (lens.exercise_2, random_clusters), (lens.exercise_3, prune)]
)
@pytest.mark.parametrize("spoil", SPOILS)
def test_spoilt_answers_of_notebook_04(check, right, spoil):
    """As for the solutions of every notebook."""
    assert "not yet." in check_said(check, [spoil(right)])


def lengthened(second, tokens, word):
    return second * word / tokens.norm(dim=1).mean()


def weighed(c, e, other_c, other_e):
    return torch.cosine_similarity(torch.cat([c, e]), torch.cat([other_c, other_e]), dim=0)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (
            causal2vec.exercise_1,
            lengthened,
            {
                "unchanged": lambda s, t, w: s,
                "the inverse": lambda s, t, w: s * t.norm(dim=1).mean() / w,
                "not divided": lambda s, t, w: s * w,
                "the longest token": lambda s, t, w: s * w / t.norm(dim=1).max(),
                "the length of the mean": lambda s, t, w: s * w / t.mean(dim=0).norm(),
                "the weights' own length": lambda s, t, w: s * w / s.norm(),
                "the tokens": lambda s, t, w: lengthened(t, t, w),
            },
        ),
        (
            causal2vec.exercise_2,
            weighed,
            {
                "the plain mean": lambda c, e, d, f: (F.cosine_similarity(c, d, 0) + F.cosine_similarity(e, f, 0)) / 2,
                "the first half": lambda c, e, d, f: F.cosine_similarity(c, d, 0),
                "the second half": lambda c, e, d, f: F.cosine_similarity(e, f, 0),
                "the dot product": lambda c, e, d, f: c @ d + e @ f,
                "the sum of halves": lambda c, e, d, f: F.cosine_similarity(c + e, d + f, 0),
                "crossed": lambda c, e, d, f: weighed(c, e, f, d),
            },
        ),
    ],
    ids=["lengthened", "weighed"],
)
def test_exercises_of_notebook_05(capsys, check, right, wrong):
    reject(capsys, check, right, wrong)


@pytest.mark.parametrize(("check", "right"), [(causal2vec.exercise_1, lengthened), (causal2vec.exercise_2, weighed)])
@pytest.mark.parametrize("spoil", SPOILS)
def test_spoilt_answers_of_notebook_05(check, right, spoil):
    """As for the solutions of every notebook."""
    assert "not yet." in check_said(check, [spoil(right)])


# The exercises of notebook 06


def lay_out(anchor, ids, table):
    return torch.cat([anchor.unsqueeze(0), table[ids[:-1]]]), ids


def inputs(make):
    """The answer with other inputs."""
    return lambda anchor, ids, table: (make(anchor.unsqueeze(0), table[ids], table), ids)


def labels(make):
    """The answer with other labels."""
    return lambda anchor, ids, table: (lay_out(anchor, ids, table)[0], make(ids))


def both_directions(documents, queries, alpha):
    return alpha * torch.cat(documents).mean() + (1 - alpha) * torch.cat(queries).mean()


def of_means(rows):
    return torch.stack([row.mean() for row in rows])


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (
            anchor.exercise_1,
            lay_out,
            {
                "the last word read too": inputs(lambda a, w, t: torch.cat([a, w])),
                "no anchor": inputs(lambda a, w, t: w),
                "the anchor last": inputs(lambda a, w, t: torch.cat([w[:-1], a])),
                "the anchor in place of the last word": inputs(lambda a, w, t: torch.cat([w[1:], a])),
                "the first word not read": inputs(lambda a, w, t: torch.cat([a, w[1:]])),
                "the anchor added to every word": inputs(lambda a, w, t: w + a),
                "the anchor before every word": inputs(
                    lambda a, w, t: torch.stack([a.expand_as(w), w], 1).flatten(0, 1)
                ),
                "the anchor at length 1": inputs(lambda a, w, t: torch.cat([F.normalize(a, dim=1), w[:-1]])),
                "a word between": inputs(lambda a, w, t: torch.cat([a, t[2:3], w[:-1]])),
                "still a batch": inputs(lambda a, w, t: torch.cat([a, w[:-1]]).unsqueeze(0)),
                "labels shifted": labels(lambda ids: ids.roll(-1)),
                "the first word not predicted": labels(lambda ids: ids[1:]),
                "the last word not predicted": labels(lambda ids: ids[:-1]),
                "a place for the anchor": labels(lambda ids: F.pad(ids, (1, 0), value=-100)),
                "EOS predicted": labels(lambda ids: F.pad(ids, (0, 1), value=2)),
                "every word once": labels(lambda ids: ids.unique()),
                "the other order": lambda *a: lay_out(*a)[::-1],
            },
        ),
        (
            anchor.exercise_2,
            both_directions,
            {
                "alpha for the queries": lambda d, q, a: both_directions(q, d, a),
                "no alpha": lambda d, q, a: torch.cat(d).mean() + torch.cat(q).mean(),
                "alpha for both": lambda d, q, a: a * (torch.cat(d).mean() + torch.cat(q).mean()),
                "the queries whole": lambda d, q, a: a * torch.cat(d).mean() + torch.cat(q).mean(),
                "halves": lambda d, q, a: both_directions(d, q, 0.5),
                "the default": lambda d, q, a: both_directions(d, q, 0.2),
                "means of means": lambda d, q, a: a * of_means(d).mean() + (1 - a) * of_means(q).mean(),
                "sums": lambda d, q, a: a * torch.cat(d).sum() + (1 - a) * torch.cat(q).sum(),
                "sums of a pair": lambda d, q, a: (
                    a * torch.cat(d).sum() / len(d) + (1 - a) * torch.cat(q).sum() / len(q)
                ),
                "all tokens together": lambda d, q, a: torch.cat([a * torch.cat(d), (1 - a) * torch.cat(q)]).mean(),
                "the first rows": lambda d, q, a: both_directions(d[:1], q[:1], a),
                "the documents alone": lambda d, q, a: torch.cat(d).mean(),
                "negative": lambda d, q, a: -both_directions(d, q, a),
            },
        ),
    ],
    ids=["lay_out", "both_directions"],
)
def test_exercises_of_notebook_06(capsys, check, right, wrong):
    reject(capsys, check, right, wrong)


def test_the_exercises_are_what_the_objective_computes(capsys):
    """The rows that a decoder reads, and the loss that it learns from."""
    model = workbook.build("last-token", "tiny-llama", dtype="float32", device="cpu")
    head, read = backbones.load_head("tiny-llama").float(), []
    objective = Reconstruction(model, head, alpha=0.3)
    sides = [model.preprocess(["ab", "abcd"]), model.preprocess(["what", "x"])]
    handle = model[0].decoder.register_forward_pre_hook(
        lambda module, arguments, options: read.append(options.get("inputs_embeds")), with_kwargs=True
    )
    loss = objective(sides)
    handle.remove()
    table, rows = model[0].decoder.get_input_embeddings().weight, []
    written = [seen for seen in read if seen is not None]  # texts are read by their ids, all in one pass
    for vectors, target, seen in zip(objective.embedded(sides), sides[::-1], written, strict=True):
        rows.append([])
        for row, (ids, own) in enumerate(zip(*objective.texts(target, "positive"), strict=True)):
            given, predicted = lay_out(vectors[row], ids[own], table)
            torch.testing.assert_close(seen[row, : len(given)], given)
            states = model[0].decoder(inputs_embeds=given.unsqueeze(0)).last_hidden_state[0]
            rows[-1].append(F.cross_entropy(head(states), predicted, reduction="none"))
    torch.testing.assert_close(both_directions(*rows, 0.3), loss, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("check", "right"), [(anchor.exercise_1, lay_out), (anchor.exercise_2, both_directions)])
@pytest.mark.parametrize("spoil", SPOILS)
def test_spoilt_answers_of_notebook_06(check, right, spoil):
    """As for the solutions of every notebook."""
    assert "not yet." in check_said(check, [spoil(right)])


# The exercises of notebook 07


def beside(*rows):
    return [*zip(*rows, strict=True)]


def on_front(costs, scores):
    rows = beside(costs, scores)
    return [not any(c <= cost and s >= score and (c, s) != (cost, score) for c, s in rows) for cost, score in rows]


def by_cost(keep):
    """Rows in order of rising cost, each kept by what it is told of the scores before it."""

    def answer(costs, scores):
        kept, before = [False] * len(costs), []
        for row in sorted(range(len(costs)), key=lambda row: (costs[row], -scores[row])):
            kept[row] = keep(before, scores[row])
            before.append(scores[row])
        return kept

    return answer


def reciprocal(ranks):
    return sum(100 / rank for rank in ranks) / len(ranks)


def added(first, second):
    return reciprocal([*map(min, first, second)]) - max(reciprocal(first), reciprocal(second))


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (
            compare.exercise_1,
            on_front,
            {
                "better in both only": lambda c, s: [
                    not any(a < x and b > y for a, b in beside(c, s)) for x, y in beside(c, s)
                ],
                "at least as good counts, itself too": lambda c, s: [
                    not any(a <= x and b >= y for a, b in beside(c, s)) for x, y in beside(c, s)
                ],
                "better than the neighbour": by_cost(lambda before, score: not before or score > before[-1]),
                "equals once": by_cost(lambda before, score: score > max(before, default=-9)),
                "in the order of the rows": lambda c, s: [score >= max(s[: n + 1]) for n, score in enumerate(s)],
                "in the order of cost": lambda c, s: on_front(*beside(*sorted(beside(c, s)))),
                "dear is good": lambda c, s: on_front([-x for x in c], s),
                "low is good": lambda c, s: on_front(c, [-x for x in s]),
                "off the front": lambda c, s: [not on for on in on_front(c, s)],
                "the best": lambda c, s: [score == max(s) for score in s],
                "the best and the cheapest": lambda c, s: [x == min(c) or y == max(s) for x, y in beside(c, s)],
                "score for cost": lambda c, s: [y / x >= sum(s) / sum(c) for x, y in beside(c, s)],
                "above the mean": lambda c, s: [score >= sum(s) / len(s) for score in s],
                "places": lambda c, s: [n for n, on in enumerate(on_front(c, s)) if on],
            },
        ),
        (
            compare.exercise_2,
            added,
            {
                "the better model": lambda a, b: max(reciprocal(a), reciprocal(b)),
                "the oracle whole": lambda a, b: reciprocal([*map(min, a, b)]),
                "over the first": lambda a, b: reciprocal([*map(min, a, b)]) - reciprocal(a),
                "over the second": lambda a, b: reciprocal([*map(min, a, b)]) - reciprocal(b),
                "over the worse": lambda a, b: reciprocal([*map(min, a, b)]) - min(reciprocal(a), reciprocal(b)),
                "over the mean of both": lambda a, b: reciprocal([*map(min, a, b)]) - reciprocal([*a, *b]),
                "the worse rank": lambda a, b: added([*map(max, a, b)], b),
                "in shares": lambda a, b: added(a, b) / 100,
                "ranks": lambda a, b: (min(sum(a), sum(b)) - sum(map(min, a, b))) / len(a),
                "of the mean rank": lambda a, b: (
                    100 / (sum(map(min, a, b)) / len(a)) - 100 * len(a) / min(sum(a), sum(b))
                ),
                "first places": lambda a, b: (
                    100 * (sum(min(x) == 1 for x in beside(a, b)) - max(a.count(1), b.count(1))) / len(a)
                ),
                "a sum": lambda a, b: added(a, b) * len(a),
                "the other sign": lambda a, b: -added(a, b),
            },
        ),
    ],
    ids=["on_front", "added"],
)
def test_exercises_of_notebook_07(capsys, check, right, wrong):
    reject(capsys, check, right, wrong)


def test_the_exercises_of_notebook_07_are_what_the_library_computes(capsys):
    """A front as drawn, and the oracle beside the better of two models, of scores whose rank is known."""

    def front(costs, scores):
        return probes.pareto(pd.DataFrame({"cost": costs, "score": scores}), "cost", "score").tolist()

    def cosines(ranks):
        """Of 20 documents, as many at 1 as stand before the query's own, which is at 0."""
        matrix = np.full((len(ranks), 20), -1.0)
        for query, rank in enumerate(ranks):
            others = np.delete(np.arange(20), query)
            matrix[query, query], matrix[query, others[: rank - 1]] = 0, 1
        return matrix

    def gain(first, second):
        found = evaluation.complement({"first": cosines(first), "second": cosines(second)})
        scores = (100 / found["rank"]).groupby(found["by"]).mean()
        return scores["either"] - scores[["first", "second"]].max()

    assert said(capsys, front, compare.exercise_1) == "Exercise 1: correct.\n"
    assert said(capsys, gain, compare.exercise_2) == "Exercise 2: correct.\n"


@pytest.mark.parametrize(("check", "right"), [(compare.exercise_1, on_front), (compare.exercise_2, added)])
@pytest.mark.parametrize("spoil", SPOILS)
def test_spoilt_answers_of_notebook_07(check, right, spoil):
    """As for the solutions of every notebook."""
    assert "not yet." in check_said(check, [spoil(right)])


# The exercises of notebook 08


def batched(lengths, size):
    return [lengths[at : at + size] for at in range(0, len(lengths), size)]


def padded(lengths, size):
    return 1 - sum(lengths) / sum(len(one) * max(one) for one in batched(lengths, size))


def operations(weights, layers, width, tokens, front):
    return 2 * weights * tokens + 4 * layers * width * tokens * (tokens + front)


def as_steps(vectors, width, most=127):
    first = vectors[:, :width]
    steps = np.abs(first).max(axis=1, keepdims=True) / most
    return np.round(np.divide(first, steps, out=np.zeros_like(first), where=steps > 0))


EFFICIENCY = [
    (
        efficiency.exercise_1,
        padded,
        {
            "one batch": lambda x, n: padded(x, len(x)),
            "sorted": lambda x, n: padded(sorted(x), n),
            "the last one full": lambda x, n: 1 - sum(x) / sum(n * max(one) for one in batched(x, n)),
            "of real tokens": lambda x, n: sum(len(one) * max(one) for one in batched(x, n)) / sum(x) - 1,
            "mean of batches": lambda x, n: np.mean([padded(one, n) for one in batched(x, n)]),
            "real share": lambda x, n: 1 - padded(x, n),
            "cells": lambda x, n: sum(len(one) * max(one) for one in batched(x, n)) - sum(x),
        },
    ),
    (
        efficiency.exercise_2,
        operations,
        {
            "one for a weight": lambda w, d, h, n, f: operations(w / 2, d, h, n, f),
            "scores alone": lambda w, d, h, n, f: operations(w, d, h / 2, n, f),
            "no front": lambda w, d, h, n, f: operations(w, d, h, n, 0),
            "the front read": lambda w, d, h, n, f: operations(w, d, h, n + f, 0),
            "one layer": lambda w, d, h, n, f: operations(w, 1, h, n, f),
            "no attention": lambda w, d, h, n, f: operations(w, 0, h, n, f),
            "the causal half": lambda w, d, h, n, f: 2 * w * n + 4 * d * h * n * ((n + 1) / 2 + f),
            "linear": lambda w, d, h, n, f: 2 * w * n + 4 * d * h * (n + f),
        },
    ),
    (
        efficiency.exercise_3,
        as_steps,
        {
            "rounded first": lambda v, n: as_steps(v, v.shape[1])[:, :n],
            "the last": lambda v, n: as_steps(v[:, ::-1], n),
            "128 steps": lambda v, n: as_steps(v, n, 128),
            "one scale": lambda v, n: np.round(v[:, :n] / np.abs(v[:, :n]).max() * 127),
            "signed": lambda v, n: np.round(127 * v[:, :n] / np.maximum(v[:, :n].max(axis=1, keepdims=True), 1e-9)),
            "of columns": lambda v, n: np.round(127 * v[:, :n] / np.maximum(np.abs(v[:, :n]).max(axis=0), 1e-9)),
            "not rounded": lambda v, n: 127 * v[:, :n] / np.maximum(np.abs(v[:, :n]).max(axis=1, keepdims=True), 1e-9),
            "whole": lambda v, n: as_steps(v, v.shape[1]),
            "signs": lambda v, n: np.sign(v[:, :n]),
        },
    ),
]


@pytest.mark.parametrize(("check", "right", "wrong"), EFFICIENCY, ids=["padded", "operations", "as_steps"])
def test_exercises_of_notebook_08(capsys, check, right, wrong):
    reject(capsys, check, right, wrong)


def test_the_exercises_of_notebook_08_are_what_the_library_computes(capsys):
    def of_size(weights, layers, width, tokens, front):
        return probes.Size(weights, layers, width).flops(tokens, front)

    def kept(vectors, width):
        return probes.stored(vectors, "int8", width)

    for answer, check in zip((probes.padding_share, of_size, kept), [row[0] for row in EFFICIENCY], strict=True):
        assert said(capsys, answer, check).endswith("correct.\n")


@pytest.mark.parametrize(("check", "right"), [row[:2] for row in EFFICIENCY])
@pytest.mark.parametrize("spoil", SPOILS)
def test_spoilt_answers_of_notebook_08(check, right, spoil):
    """As for the solutions of every notebook."""
    assert "not yet." in check_said(check, [spoil(right)])


# The exercises of notebook 09


def of_wanda(weight, inputs):
    return weight.abs() * inputs.norm(dim=0)


def as_int8(weight, scales=None):
    scales = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127 if scales is None else scales
    return (weight / scales).round().clamp(-127, 127) * scales


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (
            compress.exercise_1,
            of_wanda,
            {
                "magnitude": lambda w, x: w.abs(),
                "signed": lambda w, x: w * x.norm(dim=0),
                "mean magnitude": lambda w, x: w.abs() * x.abs().mean(dim=0),
                "root mean square": lambda w, x: w.abs() * x.square().mean(dim=0).sqrt(),
                "squared norm": lambda w, x: w.abs() * x.square().sum(dim=0),
                "one norm": lambda w, x: w.abs() * x.norm(),
                "of tokens": lambda w, x: w.abs() * x.norm(dim=1)[0],
                "sum": lambda w, x: w.abs() * x.sum(dim=0).abs(),
                "largest": lambda w, x: w.abs() * x.abs().amax(dim=0),
            },
        ),
        (
            compress.exercise_2,
            as_int8,
            {
                "one scale": lambda w: as_int8(w, w.abs().max() / 127),
                "of columns": lambda w: as_int8(w, w.abs().amax(dim=0, keepdim=True).clamp(min=1e-12) / 127),
                "128 steps": lambda w: as_int8(w, w.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 128),
                "zero over zero": lambda w: as_int8(w, w.abs().amax(dim=1, keepdim=True) / 127),
                "signed maximum": lambda w: as_int8(w, w.amax(dim=1, keepdim=True).clamp(min=1e-12) / 127),
                "cut": lambda w: (w / (s := w.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127)).trunc() * s,
                "integers": lambda w: (w / (w.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127)).round(),
                "as it is": lambda w: w,
                "shifted": lambda w: (
                    (
                        (w - (low := w.amin(dim=1, keepdim=True)))
                        / (s := (w.amax(dim=1, keepdim=True) - low).clamp(min=1e-12) / 255)
                    ).round()
                    * s
                    + low
                ),
            },
        ),
    ],
    ids=["of_wanda", "as_int8"],
)
def test_exercises_of_notebook_09(capsys, check, right, wrong):
    reject(capsys, check, right, wrong)


@pytest.mark.parametrize(("check", "right"), [(compress.exercise_1, of_wanda), (compress.exercise_2, as_int8)])
@pytest.mark.parametrize("spoil", SPOILS)
def test_spoilt_answers_of_notebook_09(check, right, spoil):
    """As for the solutions of every notebook."""
    assert "not yet." in check_said(check, [spoil(right)])
