"""A lexicon score split by cluster, faithfulness, names, keywords: against naive second computations."""

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import SentenceTransformer

from workbook import backbones, build, papers, probes
from workbook.errors import InvalidValueError
from workbook.modules import Lexicon
from workbook.modules.lexicon import LEXICON_POOLINGS
from workbook.probes.keywords import EXPANSION, FUNCTION, OTHER, OWN
from workbook.vocabulary.clusters import cluster_head, clusters_of
from workbook.vocabulary.names import is_content_word, name_of, token_forms

QUERY, DOCUMENT = "why do my tomato leaves curl", "Leaves of tomatoes roll up in dry heat."
INSTRUCTION = "Find the note"
CLUSTERS = 40


@pytest.fixture
def tiny():
    def tiny(pooling="max", clusters=CLUSTERS):
        options = {"pooling": pooling, "clusters": clusters}
        return build("lens", "tiny-llama", pooling_options=options, dtype="float32", device="cpu")

    return tiny


@pytest.fixture(scope="session")
def tokenizer():
    return backbones.load_tokenizer("smollm2-135m")


def ids_of(tokenizer, *texts):
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert all(len(row) == 1 for row in rows)
    return [row[0] for row in rows]


# The split


@pytest.mark.parametrize("pooling", LEXICON_POOLINGS)
def test_the_products_add_up_to_the_cosine_and_come_from_the_positions(tiny, pooling):
    model = tiny(pooling)
    frame = probes.matches(model, QUERY, DOCUMENT, INSTRUCTION)
    query, document = model.encode([QUERY], prompt=INSTRUCTION)[0], model.encode([DOCUMENT])[0]
    cosine = float(query.astype(float) @ document / np.linalg.norm(query) / np.linalg.norm(document))
    assert frame["score"].sum() == pytest.approx(cosine, abs=1e-6)
    assert frame["share"].sum() == pytest.approx(1)
    assert frame["score"].is_monotonic_decreasing
    assert {*frame["cluster"]} == {*np.flatnonzero((query > 0) & (document > 0))}
    for row in frame.itertuples():
        assert row.score == pytest.approx(query[row.cluster] * document[row.cluster], abs=1e-6)
        assert row.query == pytest.approx(query[row.cluster], abs=1e-5)
    for side, text, instruction in (("query", QUERY, INSTRUCTION), ("document", DOCUMENT, None)):
        found = probes.top_clusters(model, [text], instruction, top=CLUSTERS).set_index("cluster")
        rows = found.loc[frame["cluster"]]
        assert frame[f"{side}_position"].tolist() == rows["position"].tolist()
        assert frame[f"{side}_token"].tolist() == rows["token"].tolist()
        assert frame[side].tolist() == pytest.approx(rows["weight"].tolist(), abs=1e-5)
    assert frame["name"].tolist() == probes.cluster_names(model, frame["cluster"].tolist())
    assert probes.matches(model, QUERY, DOCUMENT, INSTRUCTION, top=3).equals(frame[:3])


def test_a_reading_has_the_text_token_by_token(tiny):
    for pooling, said in (("max", QUERY), ("sum", QUERY), ("last", "</s>")):
        (reading,) = probes.lexicon_readings(tiny(pooling), [QUERY], INSTRUCTION)
        assert "".join(reading.tokens.values()) == said
        assert {*reading.positions.tolist()} - {-1} <= {*reading.tokens}
        assert ((reading.positions == -1) == (reading.weights == 0)).all()


def test_no_common_weight_is_no_match(tiny):
    module = tiny()[0]
    lexicon = Lexicon(torch.zeros(2, 32), clusters=torch.arange(len(module.tokenizer)) % 2)
    model = SentenceTransformer(modules=[module, lexicon], device="cpu")
    frame = probes.matches(model, QUERY, DOCUMENT)
    assert frame.empty
    assert frame.columns[:4].tolist() == ["cluster", "name", "score", "share"]


# Faithfulness


def naive_outcome(query, documents, right):
    scores = [sum(q * d for q, d in zip(query, document, strict=True)) for document in documents]
    above = sum(score > scores[right] + 1e-12 for score in scores)
    equal = sum(abs(score - scores[right]) <= 1e-12 for score in scores)
    return scores[right], 1 / (above + (1 + equal) / 2)


@pytest.fixture
def vectors():
    generator = np.random.default_rng(3)
    queries, documents = (np.maximum(generator.normal(size=(rows, 12)), 0) for rows in (6, 9))
    return queries, documents, generator.integers(9, size=6)


def test_deleting_and_keeping_the_matched_clusters_against_a_naive_loop(vectors):
    queries, documents, right = vectors
    found = probes.faithfulness(queries, documents, right, deleted=(0, 1, 3, 20))
    found = found.set_index(["change", "order", "clusters", "query"])
    for index, (query, own) in enumerate(zip(queries, right, strict=True)):
        active = [cluster for cluster in range(12) if query[cluster] > 0]
        order = sorted(active, key=lambda cluster: -query[cluster] * documents[own][cluster])
        for k in (0, 1, 3, 20):
            for change in ("delete", "keep"):
                kept = order[k:] if change == "delete" else order[:k]
                expected = naive_outcome([q if c in kept else 0 for c, q in enumerate(query)], documents, own)
                row = found.loc[change, "matched", k, index]
                assert (row["score"], row["reciprocal_rank"]) == pytest.approx(expected)


def test_random_clusters_are_drawn_from_those_with_a_weight(vectors):
    queries, documents, right = vectors
    found = probes.faithfulness(queries, documents, right, deleted=(0, 1, 12), draws=400)
    found = found[found["order"] == "random"].set_index(["change", "clusters", "query"])
    for index, (query, own) in enumerate(zip(queries, right, strict=True)):
        active = (query > 0).sum()
        whole = query @ documents[own]
        scores = {key: found["score"][(*key, index)] for key in (("delete", 1), ("keep", 1), ("delete", 12))}
        assert scores["delete", 1] + scores["keep", 1] == pytest.approx(whole)
        assert scores["keep", 1] == pytest.approx(whole / active, rel=0.25)
        assert scores["delete", 12] == pytest.approx(0, abs=1e-9)
        assert found["reciprocal_rank"]["delete", 12, index] == pytest.approx(1 / 5)  # nine documents, all alike
    one, other = (probes.faithfulness(*vectors, seed=seed) for seed in (0, 1))
    assert one.equals(probes.faithfulness(*vectors))
    assert not one.equals(other)
    fixed = one["order"] == "matched"
    assert one[fixed].equals(other[fixed])


def test_an_explanation_that_is_true_by_construction_is_faithful():
    """A query of ten clusters, one of which its document has, and all others not: no other cluster matters."""
    documents = np.eye(10) + np.r_[np.zeros((1, 10)), np.full((9, 10), 0.01)]
    frame = probes.faithfulness(np.ones((1, 10)), documents, [0], deleted=(1,), draws=200)
    ranks = frame.set_index(["change", "order"])["reciprocal_rank"]
    assert ranks["keep", "matched"] == 1
    assert ranks["delete", "matched"] == pytest.approx(1 / 10)
    assert ranks["delete", "random"] < ranks["keep", "matched"]


def test_clusters_chosen_with_the_document_in_hand_help_it_in_noise_too():
    """What the docstring warns of."""
    queries, documents = (np.maximum(np.random.default_rng(seed).normal(size=(50, 400)), 0) for seed in (1, 2))
    frame = probes.faithfulness(queries, documents, range(50), deleted=(0, 16))
    means = frame.groupby(["change", "order", "clusters"])["reciprocal_rank"].mean()
    assert means["delete", "random", 0] < 0.3
    assert means["keep", "matched", 16] > 0.95
    assert means["delete", "matched", 16] < means["delete", "random", 16]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": -np.ones((2, 3))}, "queries: expected finite numbers of 0 or more"),
        ({"documents": np.full((3, 3), np.nan)}, "documents: expected finite numbers"),
        ({"documents": np.ones((3, 4))}, "documents: expected 3 clusters, as the queries, got 4"),
        ({"right": [0]}, "right: expected 2 rows of documents, from 0 to 2"),
        ({"right": [0, 3]}, "right: expected 2 rows"),
        ({"right": [0.0, 1.0]}, "right: expected 2 rows"),
        ({"deleted": [-1]}, "deleted: expected"),
        ({"draws": 0}, "draws: expected a positive whole number, got 0"),
    ],
)
def test_bad_input_to_faithfulness(changes, message):
    arguments = {"queries": np.ones((2, 3)), "documents": np.ones((3, 3)), "right": [0, 1]} | changes
    with pytest.raises(InvalidValueError, match=message):
        probes.faithfulness(**arguments)


# Names


def test_a_cluster_is_named_by_the_tokens_nearest_to_its_centre(tiny):
    model = tiny()
    tokenizer, rows = model.tokenizer, model[0].decoder.get_input_embeddings().weight.detach().double().numpy()
    names = probes.cluster_names(model, top=3)
    assert len(names) == CLUSTERS
    for cluster in range(CLUSTERS):
        own = [int(token) for token in (model[1].clusters[: len(tokenizer)] == cluster).nonzero()]
        directions = rows[own] / np.linalg.norm(rows[own], axis=1, keepdims=True).clip(1e-12)
        centre = directions.mean(axis=0)
        cosines = directions @ centre / np.linalg.norm(centre).clip(1e-12)
        order = sorted(range(len(own)), key=lambda place, cosines=cosines: -round(cosines[place], 5))
        expected = name_of(tokenizer, [own[place] for place in order], 3)
        assert names[cluster] == ", ".join(repr(text)[1:-1].replace(" ", "␣") for text in expected)
    assert probes.cluster_names(model, [7, 3], top=3) == [names[7], names[3]]
    assert probes.cluster_names(model, []) == []
    assert probes.cluster_names(model) == [", ".join(name.split(", ")[:2]) for name in names]


def test_names_agree_with_the_clusters_own_order(tiny):
    made = clusters_of("tiny-llama", CLUSTERS)
    model, rows = tiny(), backbones.load_head("tiny-llama").weight.detach()
    tokenizer, apart = model.tokenizer, 0
    for cluster, name in enumerate(probes.cluster_names(model, top=1, rows=rows)):
        first = repr(name_of(tokenizer, made.members(cluster).tolist(), 1)[0])[1:-1].replace(" ", "␣")
        apart += name != first
    assert apart <= 2  # centres as k-means left them, which may not be the mean of what it then assigned


def test_texts_that_differ_by_a_space_name_once(tokenizer):
    ids = ids_of(tokenizer, " review", "review", " Review", " reviews")
    assert name_of(tokenizer, ids) == ["review", "Review"]
    assert name_of(tokenizer, ids, 9) == ["review", "Review", "reviews"]
    assert name_of(tokenizer, ids_of(tokenizer, " ")) == [" "]


def test_bad_input_to_names(tiny):
    model = tiny()
    with pytest.raises(InvalidValueError, match=r"clusters: expected numbers from 0 to 39, got 40"):
        probes.cluster_names(model, [1, 40])
    with pytest.raises(InvalidValueError, match=r"rows: expected the head that was clustered, of .* Name the backbone"):
        probes.cluster_names(model, rows=torch.zeros(3, 32))
    with pytest.raises(InvalidValueError, match="top: expected a positive whole number"):
        probes.cluster_names(model, top=0)
    with pytest.raises(InvalidValueError, match="a Decoder and a Lexicon"):
        probes.cluster_names(build("mean", "tiny-llama", dtype="float32", device="cpu"))


# Keywords


@pytest.mark.parametrize("word", ["oxygen", "Lisbon", "café", "dog's", "ran"])
def test_content_words(word):
    assert is_content_word(word)


@pytest.mark.parametrize("word", ["the", "In", "ox", ",", "3rd", "", "don't", "couldn't", "we’ll", "its", "a-b"])
def test_other_words(word):
    assert not is_content_word(word)


def test_kinds_of_clusters_by_hand(smollm2, tokenizer):
    """One head row per cluster, all with a weight in every text: what is left is the rule."""
    held = {
        1: (" oxygen", "oxygen"),  # of the text
        2: (" Review", "Review"),  # a word of the text, in another case
        3: (" the", ",", " of"),  # of the text, no content
        4: (" Portuguese", " Spring"),  # beyond the text
        5: ("ification", "ttes", "##"),  # pieces and signs
        6: (" because", " both"),  # function words beyond the text
        7: ("acin",),  # of the text, a piece
        8: (" l",),  # of the text, a single letter
    }
    clusters = torch.zeros(len(tokenizer), dtype=torch.int64)
    for cluster, texts in held.items():
        clusters[ids_of(tokenizer, *texts)] = cluster
    head = torch.zeros(9, smollm2[0].get_embedding_dimension())
    model = SentenceTransformer(modules=[smollm2[0], Lexicon(head, clusters=clusters)], device="cpu")
    text = "The review of oxygen, hyacinths lisbon"
    tokens = [tokenizer.decode([token]) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    assert tokens == ["The", " review", " of", " oxygen", ",", " hy", "acin", "ths", " l", "is", "bon"]
    with torch.no_grad():
        state = model[0](model[0].preprocess([text]))["token_embeddings"][0].mean(dim=0)
    model[1].head[1:] = state * torch.arange(9, 1, -1)[:, None] / state.norm()
    frame = probes.keyword_kinds(model, [text, "???"], top=9)
    kinds = frame[frame["text"] == 0].set_index("cluster")["kind"].drop(0, errors="ignore").to_dict()
    assert kinds == {1: OWN, 2: OWN, 3: FUNCTION, 4: EXPANSION, 5: OTHER, 6: OTHER, 7: OWN, 8: FUNCTION}
    kinds = frame[frame["text"] == 1].set_index("cluster")["kind"]
    assert kinds.loc[[1, 4]].tolist() == [EXPANSION] * 2
    assert OWN not in {*kinds}
    assert frame.columns.tolist() == ["text", "cluster", "weight", "name", "token", "kind"]
    assert frame["kind"].isin(probes.KEYWORD_KINDS).all()
    assert frame.drop_duplicates("cluster").set_index("cluster")["name"][4] in (
        "Portuguese, Spring",
        "Spring, Portuguese",
    )


def test_keywords_are_the_heaviest_clusters(tiny):
    model = tiny()
    frame = probes.keyword_kinds(model, [QUERY, DOCUMENT], INSTRUCTION, top=4)
    found = probes.top_clusters(model, [QUERY, DOCUMENT], INSTRUCTION, top=4)
    pd.testing.assert_frame_equal(
        frame[["text", "cluster", "weight", "token"]], found[["text", "cluster", "weight", "token"]]
    )
    with pytest.raises(InvalidValueError, match="texts: expected at least one, in a list"):
        probes.keyword_kinds(model, QUERY)


# The paper's clusters


def test_pairs_of_printed_words_by_hand(tokenizer):
    printed = pd.DataFrame(
        {
            "cluster": [1, 1, 1, 1, 2, 2],
            "token": ["rapid", "quickly", "Rapid", "#swift", "zzqx", "review"],
        }
    )
    forms = token_forms(tokenizer, len(tokenizer))
    assert "zzqx" not in forms
    assert " zzqx" not in forms
    assignment = torch.arange(len(tokenizer))
    ids = {word: [forms[text][0] for text in (word, f" {word}") if text in forms] for word in printed["token"]}
    ids["swift"] = [forms[text][0] for text in ("swift", " swift") if text in forms]
    assignment[ids["rapid"] + ids["quickly"]] = 0  # with the token 0
    frame = probes.printed_pairs(assignment, tokenizer, printed)
    assert frame[["first", "second"]].to_numpy().tolist() == [
        ["rapid", "quickly"],
        ["rapid", "swift"],
        ["quickly", "swift"],
        ["zzqx", "review"],
    ]
    one, other, third = len(ids["rapid"] + ids["Rapid"]), len(ids["quickly"]), len(ids["swift"])
    assert frame["pairs"].tolist() == [one * other, one * third, other * third, 0]
    expected = len(ids["rapid"]) / one
    assert frame["together"].tolist()[:3] == pytest.approx([expected, 0, 0])
    size = 1 + len(ids["rapid"] + ids["quickly"])
    chances = [
        ((size if a in ids["rapid"] else 1) - 1 + size - 1) / 2 / (len(tokenizer) - 1)
        for a in ids["rapid"] + ids["Rapid"]
    ]
    assert frame["chance"][0] == pytest.approx(np.mean(chances))
    assert frame.loc[3, ["together", "chance"]].isna().all()


def test_printed_pairs_at_both_ends(tokenizer):
    """All in one cluster, and each token on its own, which merges nothing."""
    printed = papers.published("lens_clusters")
    one = probes.printed_pairs(torch.zeros(len(tokenizer), dtype=torch.int64), tokenizer, printed)
    countable = one["pairs"] > 0
    assert countable.any()
    assert one.loc[countable, ["together", "chance"]].eq(1).all(axis=None)
    none = probes.printed_pairs(torch.arange(len(tokenizer)), tokenizer, printed)
    assert none.loc[countable, ["together", "chance"]].eq(0).all(axis=None)
    assert none["pairs"].equals(one["pairs"])
    assert (one["first"] != one["second"]).all()
    words = printed.assign(word=printed["token"].str.lower().str.removeprefix("#")).groupby("cluster")["word"].nunique()
    assert len(one) == (words * (words - 1) // 2).sum()


def test_a_map_of_clusters_and_what_they_hold(tokenizer):
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(3, 8, generator=generator) * 5
    groups = torch.arange(len(tokenizer)) % 3
    head = directions[groups] + torch.randn(len(tokenizer), 8, generator=generator)
    clusters = cluster_head(head, 24, iterations=3)
    printed = papers.published("lens_clusters")
    frame = probes.cluster_map(clusters, tokenizer, printed)
    assert frame["k"].eq(24).all()
    assert sorted(frame["cluster"]) == [*range(24)]
    assert frame["held"].is_monotonic_decreasing
    assert np.isfinite(frame[["x", "y"]]).all(axis=None)
    sizes = clusters.sizes.tolist()
    forms, first = token_forms(tokenizer, len(tokenizer)), printed.drop_duplicates("cluster")["token"].tolist()
    for row in frame.itertuples():
        assert row.size == sizes[row.cluster]
        assert row.name == ", ".join(name_of(tokenizer, clusters.members(row.cluster).tolist()))
        counts = []
        for _, part in printed.groupby("cluster"):
            texts = {space + token.strip("#") for token in part["token"] for space in ("", " ")}
            spelt = {id_ for text in texts for id_ in forms.get(text, ())}
            counts.append(sum(clusters.assignment[id_] == row.cluster for id_ in spelt))
        assert row.held == max(counts)
        assert row.printed == (first[int(np.argmax(counts))] if max(counts) else "")
    # Clusters of one of the three groups are nearer to each other than to those of the others.
    owner = directions.mean(dim=0)
    at = np.array([int(((directions - owner) @ (clusters.centroids[c] - owner)).argmax()) for c in frame["cluster"]])
    places = frame[["x", "y"]].to_numpy()
    gaps = np.linalg.norm(places[:, None] - places[None], axis=-1)
    np.fill_diagonal(gaps, np.inf)
    assert (at[gaps.argmin(axis=1)] == at).mean() > 0.9
    assert frame.equals(probes.cluster_map(clusters, tokenizer, printed))


def test_bad_input_to_the_papers_clusters(tokenizer):
    printed = papers.published("lens_clusters")
    with pytest.raises(InvalidValueError, match="printed: expected a frame with the columns cluster and token"):
        probes.printed_pairs(torch.arange(len(tokenizer)), tokenizer, printed.drop(columns="token"))
    with pytest.raises(InvalidValueError, match="tokenizer: expected that of 5 clustered tokens"):
        probes.printed_pairs(torch.arange(5), tokenizer, printed)
    few = cluster_head(torch.eye(4).repeat(len(tokenizer) // 4 + 1, 1), 3)
    with pytest.raises(InvalidValueError, match="number of clusters"):
        probes.cluster_map(few, tokenizer, printed)
