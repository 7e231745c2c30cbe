"""Little is computed for padding, in training and in encoding, and what is computed stays the same."""

import numpy as np
import pytest
import torch
from training_tools import tiny
from transformers import LlamaConfig, LlamaModel

import workbook
from workbook import backbones
from workbook.corpora.docs import load_docs
from workbook.data import rows
from workbook.modules.passes import groups_of_like_length
from workbook.objectives import Contrastive, get
from workbook.training.prepare import prepared
from workbook.training.teacher import TaughtCollator

STAGES = [
    pytest.param(method, stage.name, marks=[pytest.mark.journey] * (method == "causal2vec"))
    for method in ("llm2vec", "nv-embed", "lens", "causal2vec", "anchor")
    for stage in workbook.recipe(method, "cpu").stages
]


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """Folder of a decoder of one narrow layer that reads the tokens of the default backbone."""
    folder = tmp_path_factory.mktemp("narrow")
    tokenizer = backbones.load_tokenizer("smollm2-135m")
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, tie_word_embeddings=True, **sizes)
    LlamaModel(config).save_pretrained(folder)
    return str(folder)


def counted(model):
    """What the decoder computes from now on: real tokens, and all, with padding."""
    seen = {"real": 0, "all": 0}

    def count(module, args, given):
        read = given["inputs_embeds"] if given.get("inputs_embeds") is not None else given["input_ids"]
        tokens, mask = read.shape[0] * read.shape[1], given["attention_mask"]
        seen["all"] += tokens
        seen["real"] += tokens if mask is None else int(mask.sum())

    model[0].decoder.register_forward_pre_hook(count, with_kwargs=True)
    return seen


@pytest.mark.parametrize(("method", "name"), STAGES)
def test_in_training_at_most_a_tenth_is_padding(narrow, method, name):
    (stage,) = workbook.recipe(method, "cpu").only(name).stages
    # The pooling of LENS needs clusters of a vocabulary, and takes what the decoder gives.
    own = {"template": "lens", "attention": "bidirectional"} if method == "lens" else {}
    model = workbook.build("mean" if own else method, narrow, dtype="float32", device="cpu", **own)
    data = rows.load(**stage.reading(), tokenizer=model.tokenizer)
    ((dataset_name, dataset),) = data.datasets.items()
    collate = TaughtCollator(model[0].preprocess, prompts=data.prompts)
    with prepared(model, stage, 0), torch.no_grad():
        loss, seen = get(stage.objective)(model.train(), **stage.options), counted(model)
        for start in range(0, 10 * stage.batch_size, stage.batch_size):
            batch = [dataset[row] | {"dataset_name": dataset_name} for row in range(start, start + stage.batch_size)]
            read = collate(batch)
            loss(
                {key.removeprefix(f"{column}_"): value for key, value in read.items() if key.startswith(f"{column}_")}
                for column in dataset.column_names
            )
    assert seen["real"] > 0
    # Four pairs at a time: what is padding in a pass of Anchor's reconstruction costs less than another pass would.
    assert seen["all"] <= (1.15 if name == "reconstruction" else 1.1) * seen["real"]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_mini_batch_of_gradcache_holds_texts_of_like_length(narrow, side):
    """In the order of the data, mini-batches of 16 compute three tokens for each real one."""
    model = workbook.build("llm2vec", narrow, dtype="float32", device="cpu")
    model.tokenizer.padding_side = side
    pairs = load_docs().split("train").head(256)
    features = [model.preprocess(pairs[column].tolist()) for column in ("query", "document")]
    seen = counted(model)
    with torch.no_grad():
        Contrastive(model, mini_batch_size=16)(features)
    assert seen["all"] <= 1.1 * seen["real"]


def test_in_encoding_at_most_a_twentieth_is_padding(narrow):
    model = workbook.build("mean", narrow, dtype="float32", device="cpu")
    seen = counted(model)
    model.encode(load_docs().split("test")["document"].head(600).tolist())
    assert seen["all"] <= 1.05 * seen["real"]


@pytest.mark.journey
def test_processes_of_sentence_transformers_give_the_same_vectors():
    """One for each device that ``encode`` is told; the modules go there as they are."""
    model = tiny("nv-embed")
    texts = [f"text {number} " * (1 + number % 7) for number in range(40)]
    made = model.encode(texts, prompt="Find it", device=["cpu", "cpu"], chunk_size=20)
    np.testing.assert_allclose(made, model.encode(texts, prompt="Find it"), atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("objective", ["contrastive", "gritlm", "reconstruction", "llama2vec"])
def test_groups_and_one_pass_give_the_gradients_of_columns_alone(own, monkeypatch, objective, side):
    def after(a_pass):
        monkeypatch.setattr("workbook.modules.passes._PASS", {"cpu": a_pass})
        model = tiny("anchor" if objective in ("reconstruction", "llama2vec") else "llm2vec")
        model.tokenizer.padding_side = side
        texts = ["a fire", "the sea, and over it the sky", "grass", "of course it rains in the hills"]
        loss = get(objective)(model.eval())
        if a_pass is None:
            monkeypatch.setattr("workbook.modules.decoder.in_groups", lambda states, *given: states(*given))
            monkeypatch.setattr(
                loss, "embedded", lambda columns: [model(dict(one))["sentence_embedding"] for one in columns]
            )
        value = loss([model.preprocess(texts), model.preprocess(texts[::-1])])
        value.backward()
        return value.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    (one, slope), (other, wanted) = after(1), after(None)
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert slope.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(slope[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_the_cheapest(seed):
    """Against all ways of cutting the sorted rows."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 30, 8).tolist()
    a_pass = int(generator.integers(1, 60))

    def cost(groups):
        return sum(a_pass + len(group) * max(lengths[row] for row in group) for group in groups)

    order = sorted(range(8), key=lengths.__getitem__)
    cuts = [[bit for bit in range(1, 8) if number >> (bit - 1) & 1] for number in range(2**7)]
    ways = [[order[a:b] for a, b in zip([0, *cut], [*cut, 8], strict=True)] for cut in cuts]
    groups = groups_of_like_length(lengths, a_pass)
    assert sorted(row for group, _ in groups for row in group) == list(range(8))
    assert all(width == max(lengths[row] for row in group) for group, width in groups)
    assert cost([group for group, _ in groups]) == min(map(cost, ways))
