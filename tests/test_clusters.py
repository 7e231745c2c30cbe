"""The clustered vocabulary: on planted clusters, and by what must hold of every clustering."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from devices import DEVICES
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import normalize
from transformers import PreTrainedTokenizerFast

from workbook import backbones
from workbook.checksums import write_checksums
from workbook.errors import DamagedFileError, InvalidValueError, MissingDataError, ModelNotFoundError, OutputError
from workbook.vocabulary import clusters as module
from workbook.vocabulary.clusters import Clusters, cluster_head, clusters_of, head_sha256
from workbook.vocabulary.tokens import variants

KINDS = pytest.mark.parametrize("spherical", [True, False])


def noise(rows=400, dim=12, seed=0):
    """Rows without any structure, of different lengths and off the origin, as those of a real head are."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(rows, dim, generator=generator) * torch.rand(rows, 1, generator=generator).add(0.5)
    return rows + 0.5


def planted(clusters=20, each=15, dim=16, seed=0):
    """A head whose clusters are plain, and which row is in which."""
    generator = torch.Generator().manual_seed(seed)
    centers = 4 * normalize(torch.randn(clusters, dim, generator=generator), dim=1)
    owner = torch.arange(clusters).repeat(each)[torch.randperm(clusters * each, generator=generator)]
    return centers[owner] + 0.05 * torch.randn(len(owner), dim, generator=generator), owner


def same_partition(a, b):
    """Whether two assignments differ by the numbers of their clusters alone."""
    return len({*zip(a.tolist(), b.tolist(), strict=True)}) == len(a.unique()) == len(b.unique())


def best(head, k, **options):
    """Of some seeds the clusters of least inertia: k-means may end where it can't be bettered step by step."""
    return min((cluster_head(head, k, seed=seed, **options) for seed in range(10)), key=lambda made: made.inertia)


@KINDS
def test_planted_clusters_are_found(spherical):
    head, owner = planted()
    found = best(head, 20, spherical=spherical)
    assert same_partition(found.assignment, owner)
    for cluster, size in enumerate(found.sizes.tolist()):
        assert size == 15
        torch.testing.assert_close(found.centroids[cluster], head[found.assignment == cluster].mean(0))


def test_length_is_no_matter_to_spherical_clusters_alone():
    """Two directions in two lengths, the lengths farther apart than the directions."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.tensor([[1.0, 0.0], [0.8, 0.6]]).repeat(20, 1)
    lengths = torch.tensor([1.0, 9.0]).repeat_interleave(20)
    head = (directions + 0.01 * torch.randn(40, 2, generator=generator)) * lengths[:, None]
    assert same_partition(best(head, 2).assignment, torch.arange(40) % 2)
    assert same_partition(best(head, 2, spherical=False).assignment, lengths.long())


def test_the_centroid_of_spherical_clusters_keeps_the_scale_of_the_logits():
    """A cluster's logit is the mean of its tokens' logits."""
    head, states = noise(), noise(5, seed=1)
    found = cluster_head(head, 30)
    logits = states @ head.T
    expected = torch.stack([logits[:, found.assignment == cluster].mean(1) for cluster in range(30)], dim=1)
    torch.testing.assert_close(states @ found.centroids.T, expected)


@pytest.mark.parametrize("device", DEVICES)
@KINDS
def test_what_holds_at_the_end(spherical, device):
    head = noise()
    found = cluster_head(head.to(device), 50, spherical=spherical, iterations=100)
    rows = normalize(head, dim=1) if spherical else head
    centers = torch.stack([rows[found.assignment == cluster].mean(0) for cluster in range(50)])
    assert torch.cdist(rows, centers).argmin(1).equal(found.assignment)
    assert found.sizes.min() >= 1
    assert found.sizes.sum() == len(head)
    torch.testing.assert_close(found.distances, (rows - centers[found.assignment]).norm(dim=1), rtol=1e-3, atol=1e-4)
    assert found.inertia == pytest.approx(float(found.distances.double().square().sum()))
    assert (found.assignment.dtype, found.centroids.dtype) == (torch.int64, torch.float32)
    assert len(found) == 50


@KINDS
def test_a_seed_gives_the_same_again_and_another_something_else(spherical):
    head = noise()
    one, two, other = (cluster_head(head, 40, spherical=spherical, seed=seed) for seed in (1, 1, 2))
    for name in ("assignment", "centroids", "distances"):
        assert getattr(one, name).equal(getattr(two, name))
    assert not same_partition(one.assignment, other.assignment)


def test_the_global_generators_are_left_alone():
    state, numbers = torch.random.get_rng_state(), np.random.get_state()[1].tolist()
    cluster_head(noise(), 10)
    assert torch.random.get_rng_state().equal(state)
    assert np.random.get_state()[1].tolist() == numbers


def test_more_iterations_are_no_worse():
    head = noise()
    inertias = [cluster_head(head, 40, iterations=iterations).inertia for iterations in (1, 2, 4, 8, 50)]
    assert inertias == sorted(inertias, reverse=True)
    assert inertias[-1] < inertias[0]


def test_half_precision_is_clustered_as_its_values_in_float32():
    head = noise().bfloat16()
    half, full = cluster_head(head, 20), cluster_head(head.float(), 20)
    assert half.assignment.equal(full.assignment)
    assert half.head_sha256 == full.head_sha256


def test_the_head_is_not_changed():
    head = torch.nn.Parameter(noise())
    before = head.detach().clone()
    found = cluster_head(head, 20)
    assert head.detach().equal(before)
    assert not found.centroids.requires_grad


@KINDS
@pytest.mark.parametrize("k", [2, 5, 6])
def test_rows_that_agree_share_a_cluster(spherical, k):
    different = normalize(noise(6, seed=4), dim=1)
    head = different[torch.tensor([0] * 50 + [1, 2, 3, 4, 5])]
    found = best(head, k, spherical=spherical)
    assert found.sizes.min() >= 1
    assert len(found.assignment[:50].unique()) == 1
    if k == 6:
        assert sorted(found.sizes.tolist()) == [1, 1, 1, 1, 1, 50]


@KINDS
@pytest.mark.parametrize("apart", [3e-6, 1e-4])
@pytest.mark.parametrize("k", [6, 8, 10])
def test_rows_that_hardly_differ_fill_clusters_too(spherical, apart, k):
    head = noise(5, seed=4).repeat(2, 1)
    head[5:, 0] += apart
    found = cluster_head(head, k, spherical=spherical)
    assert found.sizes.min() >= 1
    assert found.sizes.sum() == 10
    assert found.centroids.isfinite().all()


@KINDS
def test_as_many_clusters_as_rows(spherical):
    head = noise(30)
    found = cluster_head(head, 30, spherical=spherical)
    assert found.sizes.tolist() == [1] * 30
    torch.testing.assert_close(found.centroids[found.assignment], head)
    assert found.inertia == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ([[1.0, 2.0]], r"head: expected a floating tensor \(vocabulary, dim\).*got 'list'"),
        (torch.ones(4), r"head: expected a floating tensor.*got 'torch.float32 \(4,\)'"),
        (torch.ones(4, 2, dtype=torch.int64), "head: expected a floating tensor.*int64"),
        (torch.nn.Linear(2, 4), "head: expected a floating tensor.*Linear"),
    ],
)
def test_a_head_that_is_none(head, message):
    with pytest.raises(InvalidValueError, match=message):
        cluster_head(head, 2)


@pytest.mark.parametrize("k", [1, 0, -3, 401, np.int64(401), 2.0, True, "20", None])
def test_a_number_of_clusters_that_does_not_go(k):
    with pytest.raises(InvalidValueError, match="k: expected a whole number of clusters from 2 to 400, got"):
        cluster_head(noise(), k)


@pytest.mark.parametrize("spherical", ["no", 1, None, 0.0])
def test_scaling_is_said_by_a_bool(spherical):
    for call in (partial(cluster_head, noise()), partial(clusters_of, "tiny-llama")):
        with pytest.raises(InvalidValueError, match="spherical: expected True or False, got "):
            call(4, spherical=spherical)


def test_any_integer_is_a_number(tmp_path, monkeypatch):
    """Numbers of numpy too, and they lead to the same clusters in the cache."""
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path))
    options = {"seed": np.uint8(1), "iterations": np.int32(3)}
    found = cluster_head(noise(), np.int64(20), **options)
    assert found.assignment.equal(cluster_head(noise(), 20, **{k: int(v) for k, v in options.items()}).assignment)
    found.save(tmp_path / "saved")
    assert Clusters.load(tmp_path / "saved").seed == 1
    for k, seed in ((20, 1), (np.int64(20), np.int64(1))):
        clusters_of("tiny-llama", k, seed=seed)
    assert len([*(tmp_path / "clusters").iterdir()]) == 1


@pytest.mark.parametrize("name", ["iterations", "seed"])
@pytest.mark.parametrize("value", [-1, 1.5, None, True])
def test_other_numbers_that_do_not_go(name, value):
    with pytest.raises(InvalidValueError, match=f"{name}: expected a (positive whole number|whole number from 0), got"):
        cluster_head(noise(), 4, **{name: value})


@KINDS
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rows_that_are_no_numbers(spherical, value):
    head = noise()
    head[123, 4] = value
    with pytest.raises(InvalidValueError, match="head: expected finite numbers, got 'others in row 123'"):
        cluster_head(head, 4, spherical=spherical)


def test_rows_of_zeros_point_nowhere():
    head = noise()
    head[77] = 0
    with pytest.raises(InvalidValueError, match=r"zeros in row 77'\. Cluster without scaling \(spherical=False\)"):
        cluster_head(head, 4)
    assert len(cluster_head(head, 4, spherical=False)) == 4


@KINDS
def test_fewer_different_rows_than_clusters(spherical):
    head = noise(5)[torch.arange(100) % 5]
    what = "directions of the head's rows" if spherical else "rows of the head"
    with pytest.raises(InvalidValueError, match=f"k: expected at most 5, the different {what}, got 6"):
        cluster_head(head, 6, spherical=spherical)
    assert cluster_head(head, 5, spherical=spherical).sizes.tolist() == [20] * 5


def test_rows_that_differ_in_length_alone_are_one_direction():
    head = torch.tensor([1.0, 3.0, 7.0, -5.0])[:, None] * torch.tensor([0.0, 2.0, -1.0, 3.0])
    assert cluster_head(head, 2).sizes.tolist() in ([1, 3], [3, 1])
    with pytest.raises(InvalidValueError, match="k: expected at most 2, the different directions"):
        cluster_head(head, 3)
    assert len(cluster_head(head, 4, spherical=False)) == 4


@KINDS
def test_saved_and_loaded(spherical, tmp_path):
    made = cluster_head(noise(), 20, spherical=spherical, seed=7)
    made.save(tmp_path / "clusters")
    made.save(tmp_path / "clusters")
    found = Clusters.load(tmp_path / "clusters")
    for name in ("assignment", "centroids", "distances"):
        assert getattr(found, name).equal(getattr(made, name))
    for name in ("spherical", "seed", "head_sha256", "inertia"):
        assert getattr(found, name) == getattr(made, name)
    assert [path.name for path in tmp_path.iterdir()] == ["clusters"]


def test_a_folder_of_others_is_never_replaced(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"one of clusters, got .* with notes\.txt\. Choose another"):
        cluster_head(noise(), 20).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_damage_is_found(tmp_path):
    made = cluster_head(noise(), 20)
    made.save(tmp_path)
    weights = bytearray((tmp_path / module.WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (tmp_path / module.WEIGHTS).write_bytes(weights)
    with pytest.raises(DamagedFileError, match=r"expected sha256 .* Save the clusters again"):
        Clusters.load(tmp_path)
    (tmp_path / module.WEIGHTS).write_bytes(weights[:-8])
    write_checksums(tmp_path)
    with pytest.raises(DamagedFileError, match=r"expected clusters, found none .* Save them again"):
        Clusters.load(tmp_path)
    (tmp_path / module.WEIGHTS).unlink()
    with pytest.raises(DamagedFileError, match="got no file"):
        Clusters.load(tmp_path)


@pytest.mark.parametrize(
    "spoil", [lambda it: it.float(), lambda it: it - 1, lambda it: it.view(1, -1), lambda it: it + 1]
)
def test_saved_clusters_with_other_numbers(spoil, tmp_path):
    made = clusters_of("tiny-llama", 8)
    replace(made, assignment=spoil(made.assignment)).save(tmp_path)
    with pytest.raises(DamagedFileError, match="expected clusters, found none"):
        Clusters.load(tmp_path)


@pytest.mark.parametrize(
    ("emptied", "named"),
    [((0,), "cluster 0"), ((3, 19), "clusters 3, 19"), (range(2, 9), "clusters 2, 3, 4, 5, 6 and 2")],
)
def test_saved_clusters_of_which_some_are_empty(emptied, named, tmp_path):
    made = cluster_head(noise(), 20)
    assignment = made.assignment.clone()
    assignment[torch.isin(assignment, torch.tensor([*emptied]))] = 10
    replace(made, assignment=assignment).save(tmp_path)
    with pytest.raises(DamagedFileError, match=rf"expected clusters of one token .* found none in {named}.*\. Number"):
        Clusters.load(tmp_path)


def test_a_permutation_of_clusters_is_saved_and_loaded(tmp_path):
    head = noise()
    made = cluster_head(head, 20).shuffled(head)
    made.save(tmp_path)
    assert Clusters.load(tmp_path).sizes.equal(made.sizes)


def test_a_folder_of_something_else(tmp_path):
    with pytest.raises(MissingDataError, match=r"Expected clusters in the folder .*nowhere"):
        Clusters.load(tmp_path / "nowhere")
    (tmp_path / module.CONFIG).write_text("{}")
    (tmp_path / module.CHECKSUMS).write_text("{}")
    with pytest.raises(DamagedFileError, match="expected clusters, found none"):
        Clusters.load(tmp_path)


def test_a_head_of_another_hash_or_shape():
    head = noise()
    found = cluster_head(head, 20)
    found.check(head)
    found.check(torch.nn.Parameter(head))
    with pytest.raises(InvalidValueError, match=r"head: expected .* of shape \(400, 12\), got \(399, 12\)\. Name the"):
        found.check(head[1:])
    other = head.clone()
    other[399, 11] += 1e-3
    with pytest.raises(InvalidValueError, match=f"of sha256 {found.head_sha256}, got '{head_sha256(other)}'"):
        found.check(other)
    assert head_sha256(head.reshape(200, 24)) != head_sha256(head)


WORDS = ["<s>", "Paris", "ĠParis", "Ġparis", "PARIS", "quick", "Ġquick", "fast", "Ġ", "Ã", "ã", ".", "Ġ."]


@pytest.fixture(scope="module")
def tokenizer():
    """Whole words of a byte-level vocabulary; the two accented letters are halves of other characters."""
    tokenizer = Tokenizer(models.BPE(vocab={word: token for token, word in enumerate(WORDS)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", clean_up_tokenization_spaces=False)


def made_clusters(assignment, distances=None):
    assignment = torch.tensor(assignment)
    k = int(assignment.max()) + 1
    distances = torch.zeros(len(assignment)) if distances is None else distances
    return Clusters(assignment, torch.zeros(k, 3), distances, True, 0, "hash")


def test_words_nearest_first(tokenizer):
    distances = torch.tensor([0.0, 0.3, 0.1, 0.2, 0.0, 0.5, 0.4, 0.0, 0, 0, 0, 0, 0])
    found = made_clusters([0, 1, 1, 1, 0, 2, 2, 0, 0, 0, 0, 0, 0], distances=distances)
    assert found.words(tokenizer, 1) == [" Paris", " paris", "Paris"]
    assert found.words(tokenizer, 2) == [" quick", "quick"]
    assert found.members(np.int64(1)).tolist() == [2, 3, 1]
    for cluster in (3, -1, 1.0, None):
        with pytest.raises(InvalidValueError, match="cluster: expected a whole number from 0 to 2"):
            found.words(tokenizer, cluster)


def test_variants(tokenizer):
    pairs = {(a, b): (case, space) for a, b, case, space in variants(tokenizer, 20).itertuples(index=False)}
    assert pairs == {
        (1, 2): (False, True),
        (1, 3): (True, True),
        (1, 4): (True, False),
        (2, 3): (True, False),
        (2, 4): (True, True),
        (3, 4): (True, True),
        (5, 6): (False, True),
        (11, 12): (False, True),
    }
    assert len(variants(tokenizer, 2)) == 0


def test_variants_where_decoding_drops_the_leading_space():
    vocab = [("<unk>", 0.0), ("▁what", -1.0), ("what", -1.0), ("What", -1.0), ("▁", -2.0)]
    inner = Tokenizer(models.Unigram(vocab, unk_id=0))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", clean_up_tokenization_spaces=False)
    assert tokenizer.decode([1]) == "what"
    assert {*variants(tokenizer, 5).itertuples(index=False, name=None)} == {
        (1, 2, False, True),
        (1, 3, True, True),
        (2, 3, True, False),
    }


def test_the_report(tokenizer):
    found = made_clusters([0, 1, 1, 1, 2, 3, 3, 4, 0, 0, 0, 0, 0], distances=torch.full((13,), 0.5))
    assert found.report(tokenizer) == {
        "tokens": 13,
        "clusters": 5,
        "singletons": 2,
        "median size": 2,
        "largest": 6,
        "inertia": 13 / 4,
        "variant pairs": 8,
        "variants together": 5 / 8,
        "case together": 1 / 2,
        "space together": 1,
        "chance": pytest.approx((6 * 5 + 3 * 2 + 2 * 1) / (13 * 12)),
    }
    few = made_clusters([0, 1]).report(tokenizer)
    assert math.isnan(few["variants together"])
    assert math.isnan(few["case together"])


def test_kept_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path))
    made = clusters_of("tiny-llama", 20)
    (kept,) = (tmp_path / "clusters").iterdir()
    made.check(backbones.load_head("tiny-llama").weight)
    direct = cluster_head(backbones.load_head("tiny-llama").weight, 20)
    assert made.assignment.equal(direct.assignment)
    (kept / module.WEIGHTS).unlink()  # as what cleans a cache may leave it
    assert clusters_of("tiny-llama", 20).centroids.equal(made.centroids)
    monkeypatch.setattr(module, "cluster_head", None)
    assert clusters_of("tiny-llama", 20).centroids.equal(made.centroids)
    for changes in ({"k": 21}, {"seed": 1}, {"spherical": False}):
        with pytest.raises(TypeError):
            clusters_of("tiny-llama", **{"k": 20, **changes})
    (kept / module.CONFIG).write_text("{}")
    with pytest.raises(DamagedFileError, match=r"Delete .* made again"):
        clusters_of("tiny-llama", 20)


def test_a_backbone_without_a_head(tmp_path):
    backbones.load_decoder("tiny-llama", device="cpu").save_pretrained(tmp_path)
    with pytest.raises(ModelNotFoundError, match="Expected a language-model head in"):
        clusters_of(str(tmp_path), 20)


def test_a_configuration_is_plain_json(tmp_path):
    cluster_head(noise(), 4).save(tmp_path / "c")
    config = json.loads((tmp_path / "c" / module.CONFIG).read_text())
    assert config == {"spherical": True, "seed": 0, "head_sha256": head_sha256(noise())}
