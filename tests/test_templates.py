import copy
import re
from functools import cache

import pytest
import torch
from parity import Fixture
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from workbook import backbones, build
from workbook.corpora import authored
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.modules import Decoder, Pooling
from workbook.templates import CONTEXT, TEMPLATES, Piece, Template, get_template
from workbook.tiny import tiny_tokenizer

PLAIN = TEMPLATES["plain"]
AS_RELEASED = PLAIN.model_copy(update={"mask": "count"})
SMOL = "smollm2-135m"
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@cache
def smollm2_tokenizer():
    return backbones.load_tokenizer(SMOL)


def words_cut(tokenizer, text, case):
    """LLM2Vec's own cut of long texts, written out naively: by words, until the tokens (of the first few) fit."""
    limit = case["doc_max_length"]
    while (count := min(len(tokenizer(text, add_special_tokens=False).input_ids), case["max_length"])) > limit:
        words = text.split()
        text = " ".join(words[: int(len(words) * limit / count)])
    return text


def stack(tokenizer, template, rows, max_length, padding_side):
    """Encode rows one by one (each with its own instruction) and pad them by hand."""
    encoded = [template.encode(tokenizer, [text], instruction, max_length)[0] for text, instruction in rows]
    width = max(len(row.input_ids) for row in encoded)
    out = []
    for ids, pooled, _ in encoded:
        pad = width - len(ids)
        columns = [ids, [1] * len(ids), pooled]
        fill = [tokenizer.pad_token_id, 0, 0]
        pads = [[value] * pad for value in fill]
        out.append([p + c if padding_side == "left" else c + p for c, p in zip(columns, pads, strict=True)])
    return (torch.tensor([row[n] for row in out]) for n in range(3))


@pytest.mark.parametrize(
    ("fixture", "batch"),
    # Left out: a batch whose instruction alone fills the limit; the released code embeds its beginning, we refuse it.
    [("text_tiny_bos", batch) for batch in ("mixed", "long", "empty", "eos")]
    + [("text_smollm2", batch) for batch in ("mixed", "long", "truncated", "empty")],
)
def test_llm2vec_ids_and_masks(fixture, batch):
    fixture = Fixture(f"llm2vec_pooling/{fixture}")
    smol = "smollm2" in fixture.about["variant"]
    tokenizer = smollm2_tokenizer() if smol else fixture.tokenizer("left")
    case = fixture.texts[batch]
    template = AS_RELEASED
    if batch == "eos":
        template = template.model_copy(
            update={
                "instructed": (*PLAIN.instructed[:2], Piece("{text} ", True), Piece("{eos}", True)),
                "plain": (PLAIN.plain[0], Piece("{text} ", True), Piece("{eos}", True)),
            }
        )
    rows = [(words_cut(tokenizer, pair["text"], case), pair["instruction"]) for pair in case["pairs"]]
    if batch == "empty":
        # The released code pools nothing, then everything; here an empty text has one token of its own, EOS.
        rows = rows[1:]
    ids, mask, pooled = stack(tokenizer, template, rows, case["max_length"], "left")
    expected = {key: fixture.expected[f"{batch}.{key}"] for key in ("input_ids", "attention_mask", "text_mask")}
    if batch == "empty":
        expected = {key: value[1:, -ids.shape[1] :] for key, value in expected.items()}
    assert torch.equal(ids, expected["input_ids"])
    assert torch.equal(mask, expected["attention_mask"])
    if batch != "truncated":  # there the released mask covers the instruction, a defect its fixture calls optional
        assert torch.equal(pooled, expected["text_mask"])


def test_exact_mask_differs_from_the_released_one_only_where_said():
    fixture = Fixture("llm2vec_pooling/text_smollm2")
    tokenizer = smollm2_tokenizer()
    rows = [(pair["text"], pair["instruction"]) for pair in fixture.texts["mixed"]["pairs"]]
    exact = list(stack(tokenizer, PLAIN, rows, 512, "left"))[2]
    released = fixture.expected["mixed.text_mask"]
    noted = {row["row"]: row for row in fixture.about["mask_differs_from_exact_span"]["rows"]}
    for index, (ours, theirs) in enumerate(zip(exact, released, strict=True)):
        if index in noted:
            assert ours.sum() == noted[index]["tokens_overlapping_the_text"]
            assert theirs.sum() == noted[index]["peer_mask_tokens"]
        else:
            assert torch.equal(ours, theirs)


def test_llm2vec_vectors():
    fixture = Fixture("llm2vec_pooling/text_tiny_bos")
    decoder = Decoder(fixture.decoder(), fixture.tokenizer("left"), "bidirectional", AS_RELEASED)
    for batch in ("mixed", "long"):
        case = fixture.texts[batch]
        rows = [(words_cut(decoder.tokenizer, pair["text"], case), pair["instruction"]) for pair in case["pairs"]]
        ids, mask, pooled = stack(decoder.tokenizer, AS_RELEASED, rows, case["max_length"], "left")
        features = decoder({"input_ids": ids, "attention_mask": mask, "pooling_mask": pooled})
        for pooling in ("mean", "weighted_mean", "last_token"):
            vectors = Pooling(pooling, 32)(dict(features))["sentence_embedding"]
            fixture.close(vectors, f"{batch}.{pooling}")


@pytest.mark.parametrize("fixture", ["tiny", "smollm2"])
@pytest.mark.parametrize("batch", ["query", "document", "mixed", "truncated"])
def test_echo(fixture, batch):
    fixture = Fixture(f"echo/{fixture}")
    smol = fixture.about["variant"] == "smollm2"
    case = fixture.texts["batches"][batch]
    tokenizer = smollm2_tokenizer() if smol else fixture.tokenizer("right")
    rows = [
        (text, fixture.texts["prompt"] if kind == "query" else "")
        for text, kind in zip(case["texts"], case["kinds"], strict=True)
    ]
    ids, mask, pooled = stack(tokenizer, TEMPLATES["echo"], rows, case["max_length_per_piece"], "right")
    assert torch.equal(ids, fixture.expected[f"{batch}.input_ids"])
    assert torch.equal(mask, fixture.expected[f"{batch}.attention_mask"])
    assert torch.equal(pooled, fixture.expected[f"{batch}.pool_mask"])
    if not smol:
        decoder = fixture.decoder()
        decoder.config.sliding_window = None  # the fixture's models run without it
        features = Decoder(decoder, tokenizer)({"input_ids": ids, "attention_mask": mask, "pooling_mask": pooled})
        for key, pooling in (("mean", "mean"), ("last", "last_token")):
            fixture.close(Pooling(pooling, 32)(dict(features))["sentence_embedding"], f"{batch}.{key}")


@pytest.mark.parametrize("fixture", ["tiny", "smollm2"])
@pytest.mark.parametrize("case", ["zero_examples", "one_example", "three_examples", "truncated_query", "documents"])
def test_icl(fixture, case):
    fixture = Fixture(f"icl_prompt/{fixture}")
    smol = fixture.about["variant"] == "smollm2"
    tokenizer = copy.deepcopy(smollm2_tokenizer()) if smol else fixture.tokenizer("left")
    template, texts, instruction = TEMPLATES["icl"], fixture.texts, fixture.texts["instruction"]
    if not smol:
        tokenizer.pad_token = "<unk>"
    else:
        tokenizer.add_special_tokens({"additional_special_tokens": ["<instruct>", "<query>", "<response>"]})
        # This tokenizer adds no EOS, so that the released code pools what is last without it.
        end = Piece("\n<response>", True)
        template = template.model_copy(update={"instructed": (*template.instructed[:-2], end)})
        template = template.model_copy(update={"plain": template.plain[:-1]})
    if case == "documents":
        rows, limit = [(text, None) for text in texts["documents"]], 512
    else:
        rows, limit = [(text, instruction) for text in texts["cases"][case]["queries"]], 512
        shots = texts["examples"][: texts["cases"][case]["examples_used"]]
        assert {shot["instruct"] for shot in shots} <= {instruction}
        pairs = tuple((shot["query"], shot["response"]) for shot in shots)
        template = Template.model_validate(template.model_dump() | {"examples": {instruction: pairs}})
    if case == "truncated_query":
        limit = texts["cases"][case]["query_max_length"]
        if smol:  # it makes room for "<s>" and "</s>", here plain text that is never read
            limit -= sum(len(tokenizer(mark, add_special_tokens=False).input_ids) for mark in ("<s>", "</s>"))
    ids, mask, pooled = stack(tokenizer, template, rows, limit, "left")
    assert torch.equal(ids, fixture.expected[f"{case}.input_ids"])
    assert torch.equal(mask, fixture.expected[f"{case}.attention_mask"])
    assert pooled[:, -1].all()
    if not smol:
        decoder = fixture.decoder()
        decoder.config.sliding_window = None
        features = Decoder(decoder, tokenizer)({"input_ids": ids, "attention_mask": mask, "pooling_mask": pooled})
        vectors = Pooling("last_token", 32)(features)["sentence_embedding"]
        fixture.close(torch.nn.functional.normalize(vectors), f"{case}.vector")


def test_gritlm():
    """Another published layout, as data: opener, instruction and closer before the text, all kept out of the mean."""
    fixture = Fixture("gritlm_pooling/text_causal")
    user, instruction, embed = fixture.texts["instruction"].strip().split("\n")
    template = Template(
        instructed=(Piece("{bos}", False), Piece(f"{user}\n{{instruction}}\n{embed}\n", False), Piece("{text}", True)),
        plain=(Piece("{bos}", False), Piece(fixture.texts["no_instruction_prefix"], False), Piece("{text}", True)),
    )
    tokenizer = fixture.tokenizer("right")
    decoder = Decoder(fixture.decoder(), tokenizer, "causal", template)
    for batch, given in (("query", instruction), ("no_instruction", None)):
        features = decoder.preprocess(fixture.texts[batch], prompt=given)
        assert torch.equal(features["input_ids"], fixture.expected[f"{batch}.input_ids"])
        assert torch.equal(features["pooling_mask"], fixture.expected[f"{batch}.pool_mask"])
        features = decoder(features)
        for pooling, key in (("mean", "mean"), ("weighted_mean", "weightedmean")):
            vectors = Pooling(pooling, 32)(dict(features))["sentence_embedding"]
            fixture.close(torch.nn.functional.normalize(vectors), f"{batch}.{key}")


@pytest.mark.parametrize("name", [name for name, template in TEMPLATES.items() if template.mask == "span"])
@pytest.mark.parametrize("instruction", [None, "Find the note that answers"])
def test_pooled_tokens_spell_the_text(name, instruction):
    """Read back with the tokenizer: what is pooled is the text and nothing of the instruction."""
    tokenizer = smollm2_tokenizer()
    for text in ("Basil likes warm soil.", "naïve café 😀", "  two spaces", "{text} {instruction}", "a\tb\x07c"):
        ids, pooled, _ = TEMPLATES[name].encode(tokenizer, [text], instruction, 128)[0]
        kept = [token for token, keep in zip(ids, pooled, strict=True) if keep and token != tokenizer.eos_token_id]
        assert tokenizer.decode(kept).strip() == text.strip()


def test_an_empty_text_is_one_end_token():
    tokenizer = tiny_tokenizer()
    ids, pooled, _ = PLAIN.encode(tokenizer, [""], None, 8)[0]
    assert ids == [tokenizer.bos_token_id, tokenizer.eos_token_id]
    assert pooled == [0, 1]


def test_what_does_not_fit_is_cut_from_the_text():
    tokenizer = tiny_tokenizer()
    ids, pooled, _ = TEMPLATES["eos"].encode(tokenizer, ["abcdefgh"], "Do:", 9)[0]
    assert tokenizer.decode(ids) == "<s>Do: abc</s>"
    assert pooled == [0, 0, 0, 0, 0, 1, 1, 1, 1]


def test_an_instruction_without_room_for_text_is_refused():
    with pytest.raises(InvalidValueError, match=r"at least one of the text, got 5\. Shorten the instruction"):
        TEMPLATES["eos"].encode(tiny_tokenizer(), ["abc"], "Do:", 5)


def test_bos_is_written_only_where_the_tokenizer_adds_one():
    with_bos = tiny_tokenizer()
    without = AutoTokenizer.from_pretrained(Fixture("echo/tiny").folder / "../../_shared/tiny_plain_tokenizer")
    assert PLAIN.encode(with_bos, ["a"], None, 8)[0].input_ids[0] == with_bos.bos_token_id
    assert without.bos_token_id not in PLAIN.encode(without, ["a"], None, 8)[0].input_ids


def test_unknown_template():
    with pytest.raises(UnknownNameError, match="Did you mean 'echo'"):
        get_template("ecko")


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_a_tokenizer_without_bos_writes_none(name):
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.bos_token = None
    [encoded] = TEMPLATES[name].encode(tokenizer, ["hi"], "Find it", 64)
    assert "None" not in tokenizer.decode(encoded.input_ids)
    assert None not in encoded.input_ids


SHOTS = {"Find the note": [("how deep", "Two {text} inches."), ("what eats aphids", "Ladybirds.")]}


@pytest.mark.parametrize("smol", [True, False])
@pytest.mark.parametrize("text", ["Basil likes warm soil, and so do the slugs that eat it.", "", "a"])
def test_examples_are_read_and_never_pooled_nor_cut(smol, text):
    tokenizer = smollm2_tokenizer() if smol else tiny_tokenizer()
    bare = TEMPLATES["icl"]
    few = Template.model_validate(bare.model_dump() | {"examples": SHOTS})
    for instruction in ("Find the note", "Find something else", None):
        for limit in (512, 30 if smol else 60):
            without, with_ = (one.encode(tokenizer, [text], instruction, limit)[0] for one in (bare, few))
            assert len(without.input_ids) <= limit
            extra = len(with_.input_ids) - len(without.input_ids)
            assert (extra > 0) == (instruction == "Find the note")
            pooled = [[token for token, keep in zip(*one[:2], strict=True) if keep] for one in (without, with_)]
            assert pooled[0] == pooled[1]
    prompt = tokenizer.decode(few.encode(tokenizer, ["b"], " Find the note ", 512)[0].input_ids)
    assert prompt.removeprefix("<s>").removesuffix(tokenizer.eos_token) == (
        "<instruct>Find the note\n<query>how deep\n<response>Two {text} inches.\n\n"
        "<instruct>Find the note\n<query>what eats aphids\n<response>Ladybirds.\n\n"
        "<instruct>Find the note\n<query>b\n<response>"
    )


def test_an_instruction_without_room_for_text_is_refused_with_examples_too():
    template = Template.model_validate(TEMPLATES["icl"].model_dump() | {"examples": SHOTS})
    with pytest.raises(InvalidValueError, match=r"own 44 tokens and at least one of the text, got 44"):
        template.encode(tiny_tokenizer(), ["abc"], "Find the note", 44)


def test_a_template_as_data():
    """Saved whole, defaults included, so that a default that changes later does not change how a model is read."""
    for name, template in TEMPLATES.items():
        data = template.model_dump(mode="json")
        assert data.keys() == Template.model_fields.keys()
        assert bool(data["example"]) is name.endswith("icl")
        assert data["write_bos"] is name.startswith("causal2vec")
        assert data["words_only"] is (name in ("lens", "promptreps"))
        assert Template.model_validate(data) == template


ANSWER = "<|im_end|>\n<|im_start|>assistant\n"
KEYWORDS = "\nKeywords:"


@pytest.mark.parametrize("name", ["eos", "causal2vec", "causal2vec-before", "icl"])
@pytest.mark.parametrize("instruction", [None, "Find the note"])
@pytest.mark.parametrize(("suffix", "expected"), [("answer", ANSWER), ("keywords", KEYWORDS)])
def test_another_closing_stands_where_eos_did(name, instruction, suffix, expected):
    tokenizer = smollm2_tokenizer()
    template = get_template(name)
    closed = Template.model_validate(template.model_dump() | {"suffix": suffix})
    plain, answered = (one.encode(tokenizer, ["a cat", "b"], instruction, 64, 1) for one in (template, closed))
    for before, after in zip(plain, answered, strict=True):
        assert before.input_ids[-1] == tokenizer.eos_token_id
        assert after.input_ids[: len(before.input_ids) - 1] == before.input_ids[:-1]
        assert (before.input_ids[0] == tokenizer.bos_token_id) is name.startswith("causal2vec")
        assert tokenizer.decode(after.input_ids[len(before.input_ids) - 1 :]) == expected
        # The last token is pooled as EOS was; the rest of the suffix is not.
        longer = len(after.input_ids) - len(before.input_ids)
        assert after.pooling_mask == [*before.pooling_mask[:-1], *[0] * longer, 1]


@pytest.mark.parametrize(("suffix", "expected"), [("answer", ANSWER), ("keywords", KEYWORDS)])
def test_a_cut_text_keeps_its_closing(suffix, expected):
    tokenizer = smollm2_tokenizer()
    template = Template.model_validate(get_template("eos").model_dump() | {"suffix": suffix})
    [cut] = template.encode(tokenizer, ["word " * 50], "Find", 20)
    assert len(cut.input_ids) == 20
    assert tokenizer.decode(cut.input_ids).endswith("word" + expected)
    piecewise = Template.model_validate(get_template("echo").model_dump() | {"suffix": suffix})
    [cut] = piecewise.encode(tokenizer, ["word " * 50], None, 1)  # of each piece
    assert tokenizer.decode(cut.input_ids).endswith(expected)


def test_a_closing_that_is_not_to_be_had():
    with pytest.raises(InvalidValueError, match="suffix: expected eos, since this tokenizer's chat template opens no"):
        build("last-token", "tiny-llama", suffix="answer")
    with pytest.raises(InvalidValueError, match=r"a template that has no place for it, \{eos\}"):
        build("mean", SMOL, suffix="answer")
    with pytest.raises(InvalidValueError, match="'eos', 'answer' or 'keywords'"):
        build("last-token", "tiny-llama", suffix="end")


def test_keywords_need_no_chat():
    assert build("last-token", "tiny-llama", suffix="keywords")[0].closes


@pytest.mark.parametrize("suffix", ["answer", "keywords"])
def test_a_closing_is_saved(suffix, tmp_path):
    model = build("last-token", "tiny-llama", dtype="float32", device="cpu")
    model.tokenizer.chat_template = CHAT
    model[0].suffix = suffix
    model.save(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    assert again[0].suffix == suffix
    torch.testing.assert_close(torch.tensor(again.encode(["a cat"])), torch.tensor(model.encode(["a cat"])))


@pytest.mark.parametrize("instruction", [None, "Find the note"])
def test_a_contextual_token_is_never_the_first(instruction):
    """A tokenizer that adds no BOS has one all the same; what has none at all goes without."""
    tokenizer = copy.deepcopy(smollm2_tokenizer())
    [row] = get_template("causal2vec").encode(tokenizer, ["a cat"], instruction, 64, 1)
    assert row.input_ids[0] == tokenizer.bos_token_id
    assert row.input_ids.index(CONTEXT) > 0
    assert row.pooling_mask[0] == 0
    [plain] = get_template("eos").encode(tokenizer, ["a cat"], instruction, 64)
    assert tokenizer.bos_token_id not in plain.input_ids
    tokenizer.bos_token = None
    [row] = get_template("causal2vec").encode(tokenizer, ["a cat"], None, 64, 1)
    assert row.input_ids[0] == CONTEXT


WRITTEN_OUT = "Instruct: Find the note that answers\nQuery: "


@pytest.mark.parametrize("name", ["nv-embed", "nv-embed-released", "echo", "lens", "icl", "gritlm", "causal2vec-chat"])
@pytest.mark.parametrize(
    ("prompt", "mark"),
    [
        (WRITTEN_OUT, "Instruct:"),
        ("Find the note that answers\nQuery:", "Query:"),
        ("<instruct>Find the note that answers\n<query>", "<instruct>"),
        ("<|user|>\nFind the note that answers\n<|embed|>\n", "<|user|>"),
    ],
)
def test_a_prompt_is_not_laid_out_twice(name, prompt, mark):
    with pytest.raises(InvalidValueError, match=f"bare instruction, which the template lays out.*{re.escape(mark)}"):
        TEMPLATES[name].encode(tiny_tokenizer(), ["a text"], prompt, 512, contextual_tokens=1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nv-embed", "Instruct: Find the note\nQuery: basil and light"),
        ("echo", "Instruct:Find the note,\nQuery: basil and light"),
        ("icl", "<instruct>Find the note\n<query>basil and light"),
    ],
)
def test_a_text_is_not_laid_out_twice(name, text):
    """Beside the instruction that it begins with; alone, or beside another, it is a text like any other."""
    template, tokenizer = TEMPLATES[name], tiny_tokenizer()
    with pytest.raises(InvalidValueError, match="texts: expected bare texts beside an instruction"):
        template.encode(tokenizer, ["a text", text], "Find the note", 512)
    assert template.encode(tokenizer, [text], None, 512)
    assert template.encode(tokenizer, [text], "Find the page", 512)


@pytest.mark.parametrize("name", ["plain", "eos", "causal2vec", "causal2vec-before"])
def test_a_template_without_marks_takes_a_prompt_as_it_is_written(name):
    rows = TEMPLATES[name].encode(tiny_tokenizer(), ["a text"], WRITTEN_OUT, 512, contextual_tokens=1)
    read = tiny_tokenizer().decode([token for token in rows[0].input_ids if token != CONTEXT])
    assert read.count("Instruct:") == 1


@pytest.mark.parametrize("paper", authored.PAPERS)
def test_no_instruction_of_a_paper_is_taken_for_one_that_is_laid_out(paper):
    for instruction in set(authored.instructions(paper)["instruction"]):
        for name in ("nv-embed", "echo", "lens"):
            TEMPLATES[name].encode(tiny_tokenizer(), ["a text"], instruction, 2_000)
