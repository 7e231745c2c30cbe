"""Inside a decoder that reads contextual tokens: lengths, sinks, ranks and gradients, against second computations."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from training_tools import differing, stage, tiny, trained, weights, write_encoder

import workbook
from workbook import backbones, evaluation, probes
from workbook.corpora.authored import instruction_of
from workbook.corpora.docs import load_docs
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.evaluation import SUITES
from workbook.evaluation.effects import effect
from workbook.evaluation.outcomes import Outcomes
from workbook.experiments import Record, choices, sinks
from workbook.experiments.suite import suites
from workbook.methods import icl
from workbook.modules import ContextualPooling
from workbook.papers import claims
from workbook.papers.verdicts import judge
from workbook.scale import get_scale
from workbook.templates import CONTEXT
from workbook.training import Adapter
from workbook.training.recipe import Recipe

TEXTS = ["Basil likes warm soil.", "a", "Compost turned weekly is ready in twelve weeks."]
OTHERS = ["Warm soil suits basil.", "b", "Twelve weeks make compost."]
INSTRUCTION = "Find the note"
SIZES = get_scale("quick").model_copy(
    update={"max_length": 200, "queries": 8, "documents": 12, "texts": 12, "probe_texts": 4}
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"), 200)


@pytest.fixture
def build(encoder):
    def build(backbone="tiny-llama", **options):
        return tiny("causal2vec", backbone, **{"encoder": encoder, "max_length": 200} | options)

    return build


def by_hand(model, text, instruction):
    """States and attention of one text, from the decoder alone, and the place of the contextual tokens."""
    module, words = model[0], model.tokenizer
    front = [1, *words(instruction or "", add_special_tokens=False).input_ids]
    back = [*words(text, add_special_tokens=False).input_ids, 2]
    c = module(model.preprocess([text], prompt=instruction))["context"]
    table = module.decoder.get_input_embeddings()
    scale = float(getattr(table, "embed_scale", 1.0))
    read = torch.cat([table(torch.tensor([front])), scale * c, table(torch.tensor([back]))], dim=1)
    module.decoder.set_attn_implementation("eager")
    made = module.decoder(inputs_embeds=read, output_hidden_states=True, output_attentions=True)
    module.decoder.set_attn_implementation("sdpa")
    return made, range(len(front), len(front) + c.shape[1])


# Lengths and attention


@pytest.mark.parametrize("backbone", ["tiny-llama", "tiny-gemma3"])
@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("instruction", [None, INSTRUCTION])
@torch.no_grad()
def test_norms_and_attention_by_hand(build, backbone, tokens, instruction):
    model = build(backbone, encoder_options={"tokens": tokens}, attn_implementation="sdpa")
    found = probes.contextual_norms(model, TEXTS, instruction)
    assert model[0].decoder.config._attn_implementation == "sdpa"
    for index, text in enumerate(TEXTS):
        made, places = by_hand(model, text, instruction)
        rows = found[found["text"] == index].set_index("layer")
        assert rows.index.tolist() == [0, 1, 2]
        for layer, states in enumerate(made.hidden_states):
            norms = states[0].norm(dim=1).tolist()
            rest = sorted(norm for place, norm in enumerate(norms) if place and place not in places)
            expected = max(norms[place] for place in places), norms[0], rest[(len(rest) - 1) // 2]
            assert rows.loc[layer, ["context", "bos", "words"]].tolist() == pytest.approx(expected, rel=1e-4)
        for layer, paid in enumerate(made.attentions, start=1):
            behind = paid[0, :, places[-1] + 1 :]
            expected = behind[..., [*places]].sum(-1).mean(), behind[..., 0].mean()
            assert rows.loc[layer, ["attention", "attention_bos"]].tolist() == pytest.approx([*map(float, expected)])
        assert rows.loc[0, ["attention", "attention_bos"]].isna().all()


@pytest.mark.parametrize("suffix", ["eos", "keywords"])
@torch.no_grad()
def test_a_contextual_token_behind_the_text(build, suffix):
    """In front of what closes the text, which alone reads it; only without an instruction, and only in the block."""
    model = build(suffix=suffix)
    module, words = model[0], model.tokenizer
    template, vectors = module.template, model.encode(TEXTS, prompt=INSTRUCTION)
    with module.context_last():
        np.testing.assert_array_equal(model.encode(TEXTS, prompt=INSTRUCTION), vectors)
        found = probes.contextual_norms(model, TEXTS).set_index(["text", "layer"])
    assert module.template == template
    table = module.decoder.get_input_embeddings()
    closing = [2] if suffix == "eos" else words("\nKeywords:", add_special_tokens=False).input_ids
    module.decoder.set_attn_implementation("eager")
    for index, text in enumerate(TEXTS):
        front = [1, *words(text, add_special_tokens=False).input_ids]
        c = probes.contextual_tokens(model, [text])
        read = torch.cat([table(torch.tensor([front])), c, table(torch.tensor([closing]))], dim=1)
        made = module.decoder(inputs_embeds=read, output_hidden_states=True, output_attentions=True)
        for layer, states in enumerate(made.hidden_states):
            expected = states[0, len(front)].norm().item()
            assert found.loc[(index, layer), "context"] == pytest.approx(expected, rel=1e-4)
        for layer, paid in enumerate(made.attentions, start=1):
            expected = paid[0, :, len(front) + 1 :, len(front)].mean().item()
            assert found.loc[(index, layer), "attention"] == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ZeroDivisionError), module.context_last():
        raise ZeroDivisionError
    assert module.template == template


def test_a_contextual_token_has_a_length_and_its_own_direction(build):
    model = build(encoder_options={"tokens": 2})
    own = probes.contextual_tokens(model, TEXTS)
    with probes.context_of_length(model[0], 2.5):
        found = probes.contextual_tokens(model, TEXTS)
    torch.testing.assert_close(found, 2.5 * own / own.norm(dim=-1, keepdim=True))
    torch.testing.assert_close(probes.contextual_tokens(model, TEXTS), own)


def test_a_sink_is_a_state_many_times_as_long_as_a_words(build, monkeypatch):
    """The hidden states are replaced, so that the ratio at the middle layer of five is a known one."""
    model = build(encoder_options={"tokens": 1})
    ratio = probes.SINK

    def states(middle):
        made = [torch.ones(1, 6, 4) for _ in range(5)]
        made[2][0, 1] *= middle * ratio
        made[3][0, 1] *= 100 * ratio
        return SimpleNamespace(hidden_states=made, attentions=[torch.ones(1, 1, 6, 6)] * 4)

    for middle, expected in ((1.01, True), (0.99, False)):
        kept = [states(middle)]
        monkeypatch.setattr(probes.contextual, "all_layers", lambda *_, **__: _Given(kept))  # noqa: B023
        assert probes.contextual_norms(model, ["abc"])["sink"].tolist() == [expected] * 5


class _Given:
    def __init__(self, passes):
        self.passes = passes

    def __enter__(self):
        return self.passes

    def __exit__(self, *_):
        return None


def test_a_probe_leaves_the_model_as_it_was(build):
    model = build()
    before, vectors = weights(model), model.encode(TEXTS, prompt=INSTRUCTION)
    probes.contextual_norms(model, TEXTS, INSTRUCTION)
    probes.layer_ranks(model, TEXTS, OTHERS, INSTRUCTION)
    probes.path_gradients(model, TEXTS, OTHERS, stage({"contrastive": "docs"}, "contrastive"), INSTRUCTION)
    assert differing(before, model) == []
    np.testing.assert_array_equal(model.encode(TEXTS, prompt=INSTRUCTION), vectors)
    assert not model[0].decoder._forward_hooks
    assert not model[0].decoder._forward_pre_hooks
    assert not model.training


# Ranks


@torch.no_grad()
def test_ranks_by_layer_by_hand(build):
    model = build()
    found = probes.layer_ranks(model, TEXTS, OTHERS, INSTRUCTION).set_index(["token", "layer", "query"])
    asked = [by_hand(model, text, INSTRUCTION) for text in TEXTS]
    given = [by_hand(model, text, None) for text in OTHERS]
    for token in ("context", "last"):
        for layer in range(3):
            one, other = (
                [made.hidden_states[layer][0, place[0] if token == "context" else -1] for made, place in side]
                for side in (asked, given)
            )
            for query in range(3):
                cosines = [float(torch.cosine_similarity(one[query], vector, dim=0)) for vector in other]
                rank = sum(cosine >= cosines[query] - 1e-6 for cosine in cosines)
                assert found.loc[(token, layer, query), "reciprocal_rank"] == 1 / rank
    assert (found.loc[("last", 0), "reciprocal_rank"] == 1 / 3).all()  # EOS is EOS, whatever the text


# Gradients


@pytest.mark.parametrize("adapter", [Adapter(rank=2), None], ids=["adapters", "whole"])
def test_the_paths_are_the_parts_of_the_gradient(build, adapter):
    """The two halves' gradients, from a hook that lets one half's through, have these norms; their sum is the whole."""
    model = build()
    one = stage({"contrastive": "docs"}, "contrastive", adapter=adapter, max_length=200)
    found = probes.path_gradients(model, TEXTS, OTHERS, one, INSTRUCTION, seed=3).set_index("part")
    assert found.index.tolist() == ["context", "eos", "whole"]
    gradients = {}
    for part, mask in {"context": [1.0] * 32 + [0.0] * 32, "eos": [0.0] * 32 + [1.0] * 32, "whole": [1.0] * 64}.items():
        with workbook.training.prepare.prepared(model, one, 3):
            sides = []
            for texts, asked in ((TEXTS, INSTRUCTION), (OTHERS, None)):
                vectors = model(model.preprocess(texts, prompt=asked))["sentence_embedding"]
                vectors.register_hook(lambda gradient, mask=mask: gradient * torch.tensor(mask))
                sides.append(vectors)
            unit = [side / side.norm(dim=1, keepdim=True) for side in sides]
            logits = unit[0] @ unit[1].T / 0.1
            (-logits.log_softmax(dim=1).diagonal().mean()).backward()
            got = [p.grad.flatten().clone() for p in model[0].decoder.parameters() if p.grad is not None]
            gradients[part] = torch.cat(got)
            model.zero_grad()
        assert found.loc[part, "norm"] == pytest.approx(float(gradients[part].norm()), rel=1e-3)
    torch.testing.assert_close(gradients["context"] + gradients["eos"], gradients["whole"], atol=1e-5, rtol=1e-3)
    assert found.loc[["context", "eos"], "share"].sum() == pytest.approx(1)


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, one: probes.contextual_norms(model, []), "texts: expected at least one"),
        (lambda model, one: probes.contextual_norms(tiny("mean"), ["a"]), "one that reads contextual tokens"),
        (lambda model, one: probes.layer_ranks(model, ["a", "b"], ["a"]), "documents: expected one for each of 2"),
        (lambda model, one: probes.path_gradients(model, ["a"], ["b"], one), "two or more of each"),
        (lambda model, one: probes.path_gradients(_alone(model), ["a", "b"], ["b", "a"], one), "several states"),
    ],
)
def test_bad_input(build, call, message):
    with pytest.raises(InvalidValueError, match=message):
        call(build(), stage({"contrastive": "docs"}, "contrastive"))


def _alone(model):
    model[1] = ContextualPooling(32, representation="eos")
    return model


# The experiment


def test_the_factorial_is_one():
    variants = {one.name: one for one in sinks.LENGTH.variants}
    crossed = [variants[sinks.name(encoder, length)] for encoder in sinks.ENCODERS for length in sinks.LENGTHS]
    options = [dict(one.options["encoder_options"]) for one in crossed]
    assert options == [{"pretrained": p, "length": n} for p in (True, False) for n in ("torch", "word")]
    rest = {str({name: value for name, value in one.options.items() if name != "encoder_options"}) for one in crossed}
    assert len(rest) == 1
    for scale in ("quick", "night", "paper"):
        assert len({one.trained_by(scale, "tiny-llama").fingerprint() for one in variants.values()}) == 1
    prints = {sinks.LENGTH.fingerprint(one, 0, "night", "smollm2-135m") for one in variants.values()}
    assert len(prints) == len(variants) == 8


def test_the_encoder_alone_is_the_published_one_without_instructions(monkeypatch):
    read = []
    monkeypatch.setattr(sinks, "suites", lambda model, sizes, **options: read.append((model, options)))
    sinks.encoder_alone(workbook.build("causal2vec", "tiny-llama"), get_scale("quick"))
    [(encoder, options)] = read
    published = backbones.load_encoder("minilm")
    assert options == {"instructed": False}
    assert [type(module) for module in encoder] == [type(module) for module in published]
    assert np.array_equal(encoder.encode(TEXTS), published.encode(TEXTS))


def test_an_encoder_without_a_decoder_is_measured_without_instructions():
    encoder = backbones.load_encoder("minilm")
    rows = suites(encoder, SIZES, instructed=False)
    alone = evaluation.evaluate(encoder, scale=SIZES, max_length=SIZES.max_length, instructions=None, progress=False)
    assert rows["score"].tolist() == alone["score"].tolist()
    assert [*rows["task"]] == [task for suite in evaluation.OFFLINE_SUITES for task in SUITES[suite].tasks]
    with pytest.raises(InvalidValueError, match="instead of a Decoder"):
        suites(encoder, SIZES)


def test_a_choice_differs_from_the_factorials_arm_in_one_thing():
    baseline = sinks.LENGTH.variant(sinks.WHOLE_EOS)
    chains = {one.name: one.chain("night", "smollm2-135m") for one in (baseline, *choices.CHOICES.variants)}
    own = asdict(chains.pop(sinks.WHOLE_EOS))
    assert [*chains] == [
        "before the instruction",
        "trained encoder",
        "2 tokens",
        "4 tokens",
        "8 tokens",
        "random encoder",
        "torch's length",
        "chat form",
        choices.AGAIN,
    ]
    templates = {"before the instruction": "causal2vec-before", "chat form": "causal2vec-chat"}
    changed = {name: {"template": template} for name, template in templates.items()}
    options = {f"{count} tokens": {"tokens": count} for count in (2, 4, 8)}
    options |= {"trained encoder": {"trainable": True}, "random encoder": {"pretrained": False}}
    options["torch's length"] = {"length": "torch"}
    options[choices.AGAIN] = {}  # the noise beside the choices
    changed |= {name: {"encoder_options": own["encoder_options"] | option} for name, option in options.items()}
    assert {name: asdict(chain) for name, chain in chains.items()} == {
        name: own | change for name, change in changed.items()
    }
    trained = {one.trained_by("night", "smollm2-135m").fingerprint() for one in (baseline, *choices.CHOICES.variants)}
    assert len(trained) == 1


def test_examples_are_one_factor_and_the_token_the_other():
    """Of SmolLM2's inputs: what the arms read of one query and one document differs in nothing else."""
    tokenizer, read = backbones.load_tokenizer("smollm2-135m"), {}
    for one in choices.EXAMPLES.variants:
        layout = one.chain("night", "smollm2-135m").layout()
        for asked in (instruction_of("DocsRetrieval"), None):
            (row,) = layout.encode(tokenizer, ["a cat"], asked, 48, contextual_tokens=1)
            read[one.name, bool(asked)] = row.input_ids
    responses = [response for _, response in icl.examples()[instruction_of("DocsRetrieval")]]
    for method in ("causal2vec", "last token"):
        plain, shown = (read[f"{method}, {kind}", True] for kind in ("no examples", "examples"))
        assert shown[0] == plain[0] == tokenizer.bos_token_id
        assert shown[-len(plain) + 1 :] == plain[1:]
        between = tokenizer.decode(shown[1 : -len(plain) + 1])
        assert [between.count(response) for response in responses] == [1, 1, 1]
        assert read[f"{method}, examples", False] == read[f"{method}, no examples", False]
    for kind in ("examples", "no examples"):
        for asked in (True, False):
            with_token, without = (read[f"{method}, {kind}", asked] for method in ("causal2vec", "last token"))
            assert with_token.count(CONTEXT) == 1
            assert [token for token in with_token if token != CONTEXT] == without
    variants, at = choices.EXAMPLES.variants, ("night", "smollm2-135m")
    assert len({one.trained_by(*at).fingerprint() for one in variants}) == 1
    assert len({choices.EXAMPLES.fingerprint(one, 0, *at) for one in variants}) == 4


@pytest.mark.parametrize("method", ["causal2vec", "last token"])
def test_arms_with_examples_are_trained_by_them(encoder, own, tmp_path, method):
    """On a tiny backbone, which has no chat, with an example short enough for it."""
    asked = instruction_of("DocsRetrieval")
    lines = Path(own["contrastive"]).read_text(encoding="utf-8").splitlines()
    pairs = [json.loads(line) | {"instruction": asked} for line in lines]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    own = own | {"contrastive": str(tmp_path / "asked.jsonl")}
    given = stage(own, "contrastive", name="contextual", steps=2, max_length=200, gradient_checkpointing=True)
    made = {}
    for kind in ("examples", "no examples"):
        arm = choices.EXAMPLES.variant(f"{method}, {kind}")
        options = {**arm.options, "suffix": "eos", "max_length": 200}
        options |= {"encoder": encoder} if arm.method == "causal2vec" else {}
        options |= {"examples": {asked: [("a query", "its answer")]}} if "examples" in arm.options else {}
        arm = replace(arm, options=options, recipe=lambda *_: Recipe(stages=(given,)))
        made[kind] = arm.train(0, "quick", "tiny-llama", progress=False)
    assert made["examples"].history["loss"][0] != pytest.approx(made["no examples"].history["loss"][0], abs=1e-4)
    vectors = {kind: one.model.encode(TEXTS, prompt=asked) for kind, one in made.items()}
    assert {one.shape for one in vectors.values()} == {(len(TEXTS), 64 if method == "causal2vec" else 32)}
    assert all(np.isfinite(one).all() for one in vectors.values())
    assert np.abs(vectors["examples"] - vectors["no examples"]).max() > 1e-4


@pytest.mark.journey
def test_what_is_written_down_before(build, own):
    """Before training: the untrained decoder's; after: the trained one's; each as the probes say of the models."""
    untrained, model = build(), build()
    made = trained(stage(own, "contrastive", steps=4, max_length=64), model=model)
    built = workbook.build("causal2vec", model, encoder=model[0].encoder.config.name_or_path, max_length=200)
    rows = sinks.inside(built, made, SIZES)
    assert built[0].decoder is model[0].decoder
    keys = ["when", "metric", "task"]
    assert not rows.duplicated(keys).any()
    pairs = load_docs().split("dev").head(4)
    for when, one in (("before", untrained), ("after", model)):
        here = rows[rows["when"] == when].set_index(["metric", "task"])
        norms = probes.contextual_norms(one, pairs["document"].tolist())
        read = norms[norms["layer"] == 0]
        word = np.mean([float(row.norm()) for row in one[0].decoder.get_input_embeddings().weight])
        assert here.loc[("entered", "documents"), "score"] == pytest.approx((read["context"] / word).mean(), rel=1e-3)
        assert here.loc[("sink", "documents"), "score"] == 100 * read["sink"].mean()
        assert here.loc["gradient", "score"].sum() == pytest.approx(100)
    assert rows.query("when == 'before' and task == 'fixed texts'")["score"].item() == pytest.approx(1, abs=1e-3)
    assert rows.query("when == 'after' and task == 'fixed texts'")["score"].item() != pytest.approx(1, abs=1e-3)
    shares = rows[rows["metric"] == "gradient"].pivot(index="task", columns="when", values="score")
    assert (shares["before"] - shares["after"]).abs().min() > 1e-3


def test_of_a_model_without_contextual_tokens_there_are_no_rows():
    one = SimpleNamespace(model=tiny("last-token"))
    assert isinstance(found := sinks.inside(None, one, SIZES), pd.DataFrame)
    assert found.empty


# Does the decoder listen?


@torch.no_grad()
def slowly(model, text, c, instruction):
    """The vector of a text that has ``c`` for its contextual token, from the decoder alone."""
    front = [1, *model.tokenizer(instruction or "", add_special_tokens=False).input_ids]
    back = [*model.tokenizer(text, add_special_tokens=False).input_ids, 2]
    table = model[0].decoder.get_input_embeddings()
    read = torch.cat([table(torch.tensor(front)), c, table(torch.tensor(back))]).unsqueeze(0)
    last = model[0].decoder(inputs_embeds=read).last_hidden_state[0]
    return torch.cat([last[len(front)], last[-1]])


@pytest.mark.parametrize("batch_size", [2, 32])
@torch.no_grad()
def test_replaced_tokens_by_hand(build, batch_size):
    model = build()
    found = probes.listening(model, TEXTS, OTHERS, INSTRUCTION, batch_size=batch_size)
    found = found.set_index(["side", "replacement", "part", "query"])
    sides = {"queries": (TEXTS, INSTRUCTION), "documents": (OTHERS, None)}
    tokens = {
        side: [model[0](model.preprocess([text], prompt=asked))["context"][0] for text in texts]
        for side, (texts, asked) in sides.items()
    }

    def replaced(side, replacement, index):
        own, other = tokens[side], tokens["documents" if side == "queries" else "queries"]
        mean = sum(own) / 3
        chosen = {"own": own[index], "swap": own[(index + 1) % 3], "mean": mean, "zero": 0 * mean}
        return chosen.get(replacement, other[index])

    def vectors(side, replacement):
        texts, asked = sides[side]
        return [slowly(model, text, replaced(side, replacement, n), asked) for n, text in enumerate(texts)]

    for side, replacement in ((side, one) for side in sides for one in probes.REPLACEMENTS):
        own, made = {name: vectors(name, "own") for name in sides}, vectors(side, replacement)
        for part, places in {"whole": slice(None), "context": slice(32), "eos": slice(32, None)}.items():
            read = {name: own[name] for name in sides} | {side: made}
            for n in range(3):
                moved = 1 - torch.cosine_similarity(made[n][places], own[side][n][places], dim=0)
                row = found.loc[(side, replacement, part, n)]
                assert row["moved"] == pytest.approx(float(moved), abs=1e-5)
                query = read["queries"][n][places]
                cosines = [torch.cosine_similarity(query, one[places], dim=0) for one in read["documents"]]
                rank = sum(float(cosine) >= float(cosines[n]) - 1e-6 for cosine in cosines)
                assert row["reciprocal_rank"] == pytest.approx(1 / rank)
    assert (found.loc[("queries", ["swap", "zero"], "eos"), "moved"] > 1e-4).all()
    assert not model[0].context._forward_hooks


@torch.no_grad()
def test_a_decoder_that_does_not_listen_does_not_move(build):
    """With a mask that hides the contextual token from all others, the last state is the same whatever it says."""
    model = build(attn_implementation="eager")

    def deaf(module, args, kwargs):
        place = 1 if module.asked is None else 1 + len(module.asked)
        mask = torch.full((1, 1, *[kwargs["inputs_embeds"].shape[1]] * 2), torch.finfo(torch.float32).min).triu(1)
        mask[..., place + 1 :, place] = torch.finfo(torch.float32).min
        return args, {**kwargs, "attention_mask": mask}

    decoder = model[0].decoder
    decoder.register_forward_pre_hook(deaf, with_kwargs=True)
    decoder.asked = None
    found = probes.listening(model, TEXTS, OTHERS, None, ["swap", "oracle"], batch_size=1)
    moved = found.groupby(["part"])["moved"].max()
    assert moved["eos"] < 1e-6
    assert moved["context"] > 1e-3


@torch.no_grad()
def test_vectors_given_their_own_tokens_are_the_models(build):
    model = build(encoder_options={"tokens": 2})
    tokens = probes.contextual_tokens(model, TEXTS, INSTRUCTION, batch_size=2)
    assert tokens.shape == (3, 2, 32)
    made = probes.vectors_given(model, TEXTS, tokens, INSTRUCTION, batch_size=2)
    np.testing.assert_allclose(made, model.encode(TEXTS, prompt=INSTRUCTION), atol=1e-5)


def test_bad_tokens_and_replacements(build):
    model = build()
    with pytest.raises(InvalidValueError, match="tokens: expected those of 3 texts"):
        probes.vectors_given(model, TEXTS, torch.zeros(2, 1, 32))
    with pytest.raises(InvalidValueError, match=r"tokens: expected \(3, 1, 32\), got \(3, 1, 16\)"):
        probes.vectors_given(model, TEXTS, torch.zeros(3, 1, 16))
    with pytest.raises(InvalidValueError, match="two or more of each, in pairs"):
        probes.listening(model, TEXTS, OTHERS[:2])
    with pytest.raises(UnknownNameError, match="replacement"):
        probes.listening(model, TEXTS, OTHERS, replacements=["none"])
    with pytest.raises(UnknownNameError, match="side"):
        probes.listening(model, TEXTS, OTHERS, sides=["answers"])


@torch.no_grad()
def test_one_side_alone_is_measured_as_with_both(build):
    model = build()
    both = probes.listening(model, TEXTS, OTHERS, INSTRUCTION)
    one = probes.listening(model, TEXTS, OTHERS, INSTRUCTION, sides=["documents"])
    pd.testing.assert_frame_equal(one, both[both["side"] == "documents"].reset_index(drop=True))


QUERIES, DOCUMENTS = ["one text", "another one", "a third"], ["the first answer", "a second, longer answer", "third"]


def halves(model, texts, tokens=None, instruction=None):
    """Context and EOS halves by plain calls, each of length 1, with tokens put where the encoder's would be."""
    features = model.preprocess(texts, prompt=instruction)
    if tokens is not None:
        model[0].context.forward, kept = (lambda features: features | {"context": tokens}), model[0].context.forward
    with torch.no_grad():
        vectors = model(features)["sentence_embedding"]
    if tokens is not None:
        model[0].context.forward = kept
    return [F.normalize(part, dim=1) for part in vectors.chunk(2, dim=1)]


def test_what_a_decoder_does_with_another_texts_token(build):
    model = build()
    found = probes.listening(model, QUERIES, DOCUMENTS, "Find it").set_index(["side", "replacement", "part"])
    tokens = probes.contextual_tokens(model, DOCUMENTS)
    swapped = halves(model, DOCUMENTS, tokens[[1, 2, 0]])
    own, asked = halves(model, DOCUMENTS), halves(model, QUERIES, instruction="Find it")
    for part, new, old, query in zip(("context", "eos"), swapped, own, asked, strict=True):
        rows = found.loc["documents", "swap", part]
        assert rows["moved"].to_numpy() == pytest.approx((1 - (new * old).sum(dim=1)).numpy(), abs=1e-5)
        cosines = query @ new.T
        ranks = [int((row >= row[place] - 1e-6).sum()) for place, row in enumerate(cosines)]
        assert rows["reciprocal_rank"].to_numpy() == pytest.approx([1 / rank for rank in ranks])
    assert (found.loc["documents", "swap", "eos"]["moved"] > 1e-6).all()
    assert found.xs("own", level="replacement")["moved"].max() < 1e-5
    assert {*found.index.get_level_values("replacement")} == {*probes.REPLACEMENTS}


def test_what_listening_refuses(build):
    model = build()
    with pytest.raises(UnknownNameError, match="replacement"):
        probes.listening(model, QUERIES, DOCUMENTS, replacements=["none"])
    with pytest.raises(InvalidValueError, match="queries and documents: expected two or more of each, in pairs"):
        probes.listening(model, QUERIES, DOCUMENTS[:2])
    with pytest.raises(InvalidValueError, match="tokens: expected those of 3 texts"):
        probes.vectors_given(model, QUERIES, torch.zeros(2, 1, 32))
    with pytest.raises(InvalidValueError, match="tokens: expected"), torch.no_grad():
        probes.vectors_given(model, QUERIES, torch.zeros(3, 2, 32))


def test_effects_of_the_factorial_by_hand():
    """Each effect is a mean of paired differences; a seed that a variant lacks counts for none."""
    random = np.random.default_rng(0)
    names = [sinks.name(encoder, length) for encoder in sinks.ENCODERS for length in sinks.LENGTHS]
    seeds, found, rows = (0, 1), {}, []
    for variant in names:
        for seed in (*seeds, 2) if variant == names[0] else seeds:
            found[variant, seed] = random.random(40)
            outcomes = Outcomes.of_values(found[variant, seed], range(40), factor=100)
            own = {"variant": variant, "seed": seed, "score": outcomes.score, "outcomes": outcomes}
            parts = [{"metric": "score", "part": part, "trained": True, "source": "x"} for part in ("whole", "context")]
            rows += [own | part for part in parts]
    tasks = [task for suite in ("docs", "other") for task in SUITES[suite].tasks]
    rows = pd.concat([pd.DataFrame(rows).assign(task=task) for task in tasks])
    assert set(sinks.factorial(rows)["seed"]) == {0, 1}
    mean = {variant: 100 * np.mean([found[variant, seed] for seed in seeds]) for variant in names}
    torchs, words, random_torchs, random_words = (mean[variant] for variant in names)
    expected = [
        (words - torchs + random_words - random_torchs) / 2,
        (random_words + random_torchs - words - torchs) / 2,
        words - torchs - (random_words - random_torchs),
    ]
    made = sinks.effects(rows)
    whole = made[made["panel"] == "whole, docs"]
    assert whole["effect"].tolist() == pytest.approx(expected)
    assert (whole["low"] < whole["effect"]).all()
    assert (whole["effect"] < whole["high"]).all()


ON_THE_TOKEN = [
    *(f"causal2vec-over-last-token{of}" for of in ("", "-retrieval", "-sts")),
    *("causal2vec-recency", "causal2vec-norms"),
]


@pytest.fixture(scope="module")
def recorded():
    """Of the seeds that all arms of five seeds have, while another is being recorded."""
    rows = Record(sinks.LENGTH, "night", "smollm2-135m").load().assign(source="recorded")
    rows = rows[rows["variant"] != sinks.SIXTH]
    return rows[rows.groupby("seed")["variant"].transform("nunique") == len(sinks.LENGTH.variants) - 1]


@pytest.mark.parametrize(("learned", "tested"), [(2.5, True), (3.4, False)])
@pytest.mark.parametrize("name", ON_THE_TOKEN)
def test_the_contextual_half_has_to_have_learned(recorded, name, learned, tested):
    """The record with other losses of that half: with EOS as given, elsewhere as if it had learned."""
    rows = recorded.copy()
    of_half = (rows["metric"] == "loss") & (rows["part"] == "context")
    rows.loc[of_half, "score"] = rows.loc[of_half, "variant"].eq(sinks.WHOLE_EOS).map({True: learned, False: 2.5})
    claim = claims.get(name)
    assert {*claim.names()} <= {*sinks.claimed(rows)}
    found = judge(claim, sinks.claimed(rows), scale="night").findings
    on_the_token = [one for clause, one in found.items() if re.search("causal2vec|contextual", str(clause))]
    assert on_the_token
    for one in on_the_token:
        assert (not one.why) == (one.effect.error is not None) == tested
        assert tested or "by its contextual half" in one.why


def test_effects_on_the_token_are_differences_of_the_recorded_scores(recorded):
    found = sinks.claimed(recorded)
    scores = recorded[recorded["part"] == "whole"].pivot_table("score", "variant", ["metric", "task"])
    gaps = scores.loc[sinks.WHOLE_EOS] - scores.loc[sinks.LAST_EOS]
    for ending, keys in {
        "": [("score", task) for task in SUITES["docs"].tasks],
        "_retrieval": [("score", "DocsRetrieval")],
        "_sts": [("score", "ParaphraseLadder")],
        "_recency": [("recency", "documents")],
    }.items():
        names = {f"causal2vec{ending}": 1.0, f"last_token{ending}": -1.0}
        both = {name: found[name].on([task for _, task in keys]) for name in names}
        assert effect(names, both).value == pytest.approx(gaps[keys].mean(), abs=0.02)
    means = recorded.query("metric == 'norm' and variant == @sinks.WHOLE_EOS").groupby("part")["score"].mean()
    names = {"eos_norm": 1.0, "contextual_norm": -1.0}
    assert effect(names, {name: found[name] for name in names}).value == pytest.approx(
        means["eos"] - means["context"], abs=0.02
    )
