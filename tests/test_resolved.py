"""Any change of a chain or a recipe changes what records and kept stages are known by."""

from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import normalizers
from training_tools import stage, tiny, write_encoder

from workbook import backbones, methods, objectives
from workbook.experiments import Experiment, Variant
from workbook.methods import Method
from workbook.methods.chain import Chain
from workbook.modules import POOLINGS, pooling_options
from workbook.resolved import ADDED_LATER, digest, resolved, resolved_options
from workbook.scale import get_scale
from workbook.templates import Piece, Template, get_template
from workbook.training import Adapter, Recipe, Stage
from workbook.training.recipe import Others
from workbook.training.run import Training

FORM = (Piece("{bos}", False), Piece("{examples}", False), Piece("{text} of ", False), Piece("{eos}", True))
TEMPLATES = {
    "instructed": FORM,
    "plain": FORM,
    "joint": False,
    "mask": "count",
    "write_bos": True,
    "words_only": True,
    "example": "{instruction} {query} {response};",
    "examples": {"Find it": (("a", "b"),)},
    "suffix": "keywords",
    "keywords": " So:",
}
CHAINS = {
    "pooling": "self_attention",
    "pooling_options": {"heads": 4},
    "attention": "bidirectional",
    "template": get_template("icl").with_(example=""),
    "max_length": 100,
    "suffix": "keywords",
    "examples": {"Find it": (("a", "b"),)},
    "encoder": None,
    "encoder_options": {"tokens": 2},
    "vector_behind_bos": True,
    "prefix_cache": True,
}
ADAPTERS = {"rank": 2, "alpha": 1.0, "dropout": 0.1, "targets": ("q_proj",), "keep_zeros": True}


def stages(data):
    """Another value for every field of a stage."""
    return {
        "name": "other",
        "objective": "llama2vec",
        "options": {"temperature": 0.2},
        "data": data["other"],
        "limit": 20,
        "negatives": 0,
        "blend": True,
        "mixed": True,
        "teacher": "minilm",
        "others": Others(batch_size=3, in_batch=True),
        "steps": 11,
        "batch_size": 4,
        "accumulation": 2,
        "max_length": 33,
        "learning_rate": 1e-3,
        "warmup_steps": 1,
        "decay_steps": 12,
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
        "adapter": None,
        "frozen": True,
        "context_alone": True,
        "context_rate": 2.0,
        "gradient_checkpointing": True,
        "compiled": True,
    }


@pytest.fixture
def data(own, tmp_path):
    (tmp_path / "other.jsonl").write_text('{"query": "a", "positive": "b"}\n{"query": "c", "positive": "d"}\n')
    pairs = Path(own["contrastive"])
    pairs.write_text(pairs.read_text().replace("}", ', "task": "sts"}'))  # for a stage that reads no retrieval alone
    return own | {"other": str(tmp_path / "other.jsonl")}


def short(data, /, **changes):
    return stage(data, "contrastive", options={}).model_copy(update=changes)


def fingerprint(monkeypatch, chain, stage):
    monkeypatch.setitem(methods.METHODS, "tried", Method(chain, lambda scale, backbone: Recipe(stages=(stage,))))
    variant = Variant("tried", "tried", (stage.name,))
    return Experiment("draft", "A draft", (variant,)).fingerprint(variant, 0, "quick", "tiny-llama")


@pytest.fixture
def of(monkeypatch, data):
    """The fingerprint of a record with some fields of stage, adapter, chain or template changed."""

    def made(stage=None, adapter=None, chain=None, template=None):
        chosen = Chain(**{"pooling": "latent_attention", "template": "icl", "encoder": "minilm"} | (chain or {}))
        if template:
            chosen = Chain("last_token", template=get_template("icl").with_(**template))
        one = short(data, **(stage or {}))
        return fingerprint(monkeypatch, chosen, short(data, adapter=Adapter(**adapter)) if adapter else one)

    return made


@pytest.mark.parametrize(
    ("kind", "fields", "changes"),
    [
        ("stage", Stage.model_fields, stages({"other": ""})),
        ("adapter", Adapter.model_fields, ADAPTERS),
        ("chain", Chain.__dataclass_fields__, CHAINS),
        ("template", Template.model_fields, TEMPLATES),
    ],
    ids=["stage", "adapter", "chain", "template"],
)
def test_every_field_changes_the_fingerprint_of_a_record(kind, fields, changes, of, data):
    assert changes.keys() == fields.keys(), "a field that no one has thought of here"
    if kind == "stage":
        changes = stages(data)
    # Fields that make no sense alone: examples take a place for them, and a string that lays them out.
    # A frozen decoder has no adapter.
    apart = {
        "template": {"instructed": {}, "plain": {}, "joint": {"examples": {}}},
        "stage": {"frozen": {"adapter": None}, "context_alone": {"adapter": None}},
    }.get(kind, {})
    before = of(template={"mask": "span"}) if kind == "template" else of()
    prints = {name: of(**{kind: {name: value, **apart.get(name, {})}}) for name, value in changes.items()}
    assert [name for name, found in prints.items() if found == before] == []
    assert len({*prints.values()}) == len(prints)


@pytest.mark.parametrize(("kind", "changes"), [("stage", None), ("adapter", ADAPTERS)])
def test_every_field_changes_the_key_of_a_kept_stage(kind, changes, data, tmp_path):
    plain, contextual = tiny("mean"), tiny("causal2vec", encoder=write_encoder(tmp_path / "encoder", 200))
    changes = changes or {name: value for name, value in stages(data).items() if name != "teacher"}

    def key(model, **changed):
        one = short(data, adapter=Adapter(**changed)) if kind == "adapter" else short(data, **changed)
        return Training(model, Recipe(stages=(one,))).stages[0].key

    own = {"objective": {"objective": "simcse", "options": {}, "data": data["simcse"]}, "data": {"batch_size": 2}}
    own |= {name: {"adapter": None} for name in ("frozen", "context_alone")}
    models = {name: contextual if name.startswith("context_") else plain for name in changes}
    found = {name: key(models[name], **{name: value} | own.get(name, {})) for name, value in changes.items()}
    del own["objective"]  # which has that field too; the others differ in the field alone
    assert [name for name, one in found.items() if one == key(models[name], **own.get(name, {}))] == []


def test_what_is_kept_of_a_stage_hangs_on_the_template(data):
    keys = {
        Training(tiny("last-token", template=template), Recipe(stages=(short(data),))).stages[0].key
        for template in ("eos", get_template("eos").with_(keywords=" So:"), get_template("eos").with_(write_bos=True))
    }
    assert len(keys) == 3


@pytest.mark.parametrize("name", objectives.OBJECTIVES)
def test_defaults_are_written_like_everything_else(name, data):
    kind = objectives.get(name)
    described = Stage(name="a", objective=name, steps=1, batch_size=1, max_length=1, learning_rate=1).resolved()
    left_out = {"data", *ADDED_LATER["Stage"]}  # data are known by their content
    assert described.keys() == Stage.model_fields.keys() - left_out
    assert described["adapter"].keys() == Adapter.model_fields.keys() - ADDED_LATER["Adapter"].keys()
    assert described["options"] == {key: field.default for key, field in kind.Options.model_fields.items()}


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_defaults_of_poolings_are_written(pooling):
    described = Chain(pooling).resolved()
    later = ADDED_LATER.get(f"{pooling} pooling", {}).keys()
    assert described["pooling_options"].keys() == pooling_options(pooling, {}).keys() - later
    assert described["template"].keys() == Template.model_fields.keys()
    if pooling == "latent_attention":
        assert described["pooling_options"] == {"latents": 512, "heads": 8, "head_dimension": None, "mlp": "geglu"}


LATER = {
    "Adapter": {"dropout": 0.0},
    "Stage": {"weight_decay": 0.0},
    "Template": {"words_only": False},
    "Chain": {"max_length": 512},
    "Scale": {"probe_texts": 32},
    "ContrastiveOptions": {"in_batch": True},
    "latent_attention pooling": {"mlp": "geglu"},
    "encoder": {"prefix": ""},
}
"""A field of each kind, and the value at which it stands in what follows."""


@pytest.mark.parametrize(("name", "neutral"), LATER.items(), ids=LATER)
def test_an_option_that_is_added_later_makes_nothing_stale(name, neutral, monkeypatch, of, data):
    """Records and kept stages of before are those that do not have the field: as if it were not there."""
    (field,) = neutral

    def described(**changes):
        chain = Chain("latent_attention", template="icl", encoder="minilm").with_options(**changes)
        sizes = resolved(get_scale("quick"))
        return chain.resolved(), short(data).resolved(), sizes, resolved(get_template("icl"))

    assert f"'{field}'" in str(described())
    before = of()
    monkeypatch.setitem(ADDED_LATER, name, neutral)
    if name not in ("Chain", "Stage"):  # which have a field of that name elsewhere
        assert f"'{field}'" not in str(described())
    assert of() != before, "what is left out is left out everywhere"
    for value in (1, True, "other") if neutral[field] is not True else (1, False):
        assert resolved_options(name, {field: value}) == {field: value}


def test_an_option_that_is_added_later_leaves_kept_stages_what_they_are(monkeypatch, data):
    """A template without the field, as it was when the stage was kept, has the key of one with its neutral value."""

    def key():
        return Training(tiny("mean"), Recipe(stages=(short(data),))).stages[0].key

    with_field = key()
    monkeypatch.setitem(ADDED_LATER, "Template", {"words_only": False})
    without = key()
    assert without != with_field
    real = resolved
    monkeypatch.setattr(
        "workbook.modules.decoder.resolved",
        lambda thing: {n: v for n, v in real(thing).items() if n != "words_only"},
    )
    assert key() == without


def test_subclasses_have_the_later_fields_of_their_bases(monkeypatch):
    monkeypatch.setitem(ADDED_LATER, "ContrastiveOptions", {"in_batch": True})
    for name in ("contrastive", "gritlm"):
        kind = objectives.get(name)
        assert "in_batch" not in resolved(kind.validated({}))
        assert resolved(kind.validated({"in_batch": False}))["in_batch"] is False


def test_what_json_does_not_know_has_no_digest():
    with pytest.raises(TypeError):
        digest([object()])


def test_a_training_that_comes_to_give_other_weights_makes_records_and_kept_stages_stale(monkeypatch, of, data):
    def known_by():
        return of(), Training(tiny("mean"), Recipe(stages=(short(data),))).stages[0].key

    before = known_by()
    monkeypatch.setattr("workbook.training.recipe.TRAINING", 3)
    assert all(one != other for one, other in zip(before, known_by(), strict=True))


@pytest.mark.parametrize(
    ("objective", "adapter", "stale"),
    [("simcse", Adapter(), True), ("contrastive", Adapter(dropout=0.1), True), ("contrastive", Adapter(), False),
     ("mntp", None, False)],
)  # fmt: skip
def test_other_draws_of_dropout_make_stages_that_drop_something_stale(monkeypatch, data, objective, adapter, stale):
    def known_by():
        recipe = Recipe(stages=(stage(data, objective, adapter=adapter),))
        return recipe.fingerprint(), Training(tiny("mean", attention="bidirectional"), recipe).stages[0].key

    before = known_by()
    monkeypatch.setattr("workbook.training.recipe.DROPOUT", 2)
    assert [one != other for one, other in zip(before, known_by(), strict=True)] == [stale, stale]


def test_what_is_equal_to_a_default_is_known_by_the_same(data):
    assert digest(resolved(Adapter(alpha=32))) == digest(resolved(Adapter()))
    for one in (Stage, Adapter):
        defaults = {name: field.default for name, field in one.model_fields.items() if not field.is_required()}
        needed = {} if one is Adapter else {name: getattr(short(data), name) for name in one.model_fields}
        given = one.model_validate({**needed, **defaults})
        assert all(type(getattr(given, name)) is type(value) for name, value in defaults.items())


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("workbook.vocabulary.clusters._VERSION", 9),
        ("workbook.vocabulary.clusters.ITERATIONS", 9),
        ("workbook.vocabulary.clusters.CLUSTERS", 9),
    ],
)
def test_how_a_head_is_clustered_makes_records_stale(place, value, monkeypatch, of):
    def known_by():
        return of(chain={"pooling": "lexicon", "encoder": None})

    before = known_by()
    monkeypatch.setattr(place, value)
    assert known_by() != before


def test_models_count_by_their_content(monkeypatch, of, data, tmp_path):
    """Encoders and backbones in folders; notes beside them do not count, nor where a file of data lies."""
    folder = tmp_path / "backbone"
    backbones.load_decoder("tiny-llama", lm_head=True).save_pretrained(folder)
    backbones.load_tokenizer("tiny-llama").save_pretrained(folder)
    before = backbones.content_sha256(str(folder))
    (folder / "note.json").write_text("{}")
    assert backbones.content_sha256(str(folder)) == before
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert backbones.content_sha256(str(folder)) != before
    moved = tmp_path / "elsewhere" / Path(data["contrastive"]).name
    moved.parent.mkdir()
    moved.write_text(Path(data["contrastive"]).read_text())
    before = of()
    assert of(stage={"data": str(moved)}) == before
    changed = replace(backbones.CARRIED["minilm"], sha256="0" * 64)
    monkeypatch.setitem(backbones.CARRIED, "minilm", changed)
    assert of() != before


def test_what_a_model_is_beside_its_weights_is_part_of_a_kept_stage(data):
    def key(change=lambda model: None):
        model = tiny("mean")
        change(model)
        return Training(model, Recipe(stages=(short(data),))).stages[0].key

    def base(model):
        model[0].decoder.config.rope_parameters["rope_theta"] = 77.0

    def lower(model):
        model.tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()

    def freeze(model):
        next(model[0].decoder.parameters()).requires_grad_(False)

    def kernel(model):
        model[0].decoder.config.name_or_path = "elsewhere"
        model.encode(["a text", "another one"])

    assert key(kernel) == key()
    assert len({key(), key(base), key(lower), key(freeze)}) == 4
