"""Synthetic data: the prompts are filled in, and of what a chat model answers only the JSON asked for is used."""

import json
import re
import warnings

import pytest

from workbook import backbones
from workbook.data import rows as data
from workbook.data import synthetic
from workbook.data.synthetic import PROMPTS, examples, tasks
from workbook.errors import InvalidValueError, UnknownNameError

KEYS = {
    "short-long": ("user_query", "positive_document", "hard_negative_document1", "hard_negative_document2"),
    "long-short": ("input_text", "label", "misleading_label"),
    "short-short": ("input", "positive_document"),
}
TASK = "Given a bird's name, retrieve what {it} eats"
NUMBERS = iter(range(10**6))


def good(kind, **changes):
    """A usable answer unlike all before; None leaves a key out."""
    number = next(NUMBERS)
    said = {key: f"{key} number {number}" for key in KEYS[kind]} | changes
    return {key: text for key, text in said.items() if text is not None}


class Scripted:
    """A chat model with its answers given; the last is repeated."""

    def __init__(self, *answers):
        self.answers, self.prompts = list(answers), []

    def __call__(self, prompt):
        self.prompts.append(prompt)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer if isinstance(answer, str) else json.dumps(answer)


class Obliging:
    """A chat model whose answers are all usable."""

    def __init__(self, kind):
        self.kind, self.prompts = kind, []

    def __call__(self, prompt):
        self.prompts.append(prompt)
        return json.dumps(good(self.kind))


# Prompts


@pytest.mark.parametrize("kind", PROMPTS)
def test_prompts_name_every_key_and_placeholder(kind):
    prompts = PROMPTS[kind]
    assert tuple(prompts.output.model_fields) == KEYS[kind]
    assert set(re.findall(r"{(\w+)}", prompts.example)) == {"task", *prompts.placeholders}
    assert all(f'- "{key}": a string' in prompts.example for key in KEYS[kind])
    assert "{" not in prompts.brainstorm
    assert "JSON list of strings" in prompts.brainstorm
    assert "about 40" in prompts.brainstorm


def test_the_values_are_the_papers():
    """Tables 15 and 16; the third kind has none, since all texts are English."""
    level, clear = ("high school", "college", "PhD"), ("clear", "understandable with some effort", "ambiguous")
    assert PROMPTS["short-long"].placeholders == {
        "query_type": ("extremely long-tail", "long-tail", "common"),
        "query_length": ("less than 5 words", "5 to 15 words", "at least 10 words"),
        "difficulty": level,
        "clarity": clear,
        "num_words": ("50", "100", "200", "300", "400", "500"),
    }
    assert PROMPTS["long-short"].placeholders == {
        "num_words": ("less than 10", "at least 10", "at least 50", "at least 100", "at least 200"),
        "difficulty": level,
        "clarity": clear,
    }
    assert PROMPTS["short-short"].placeholders == {}


@pytest.mark.parametrize("kind", PROMPTS)
def test_every_value_of_every_placeholder_is_drawn(kind):
    chat = Obliging(kind)
    examples(chat, kind, [TASK] * 60)
    template = re.escape(PROMPTS[kind].example)
    pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+?)", template.replace("\\ ", " "))
    seen = [re.fullmatch(pattern.replace(" ", r"\s"), prompt).groupdict() for prompt in chat.prompts]
    assert {one["task"] for one in seen} == {TASK}
    for name, values in PROMPTS[kind].placeholders.items():
        assert {one[name] for one in seen} == set(values)


@pytest.mark.parametrize("kind", PROMPTS)
def test_the_seed_decides_the_prompts_and_failures_do_not(kind):
    def prompts(chat, **options):
        examples(chat, kind, [TASK] * 8, **options)
        return chat.prompts

    first = prompts(Obliging(kind))
    assert first == prompts(Obliging(kind), seed=0)
    drawn = bool(PROMPTS[kind].placeholders)
    assert (first != prompts(Obliging(kind), seed=1)) == drawn
    assert first == prompts(Scripted("no"))
    again = prompts(Scripted("no"), attempts=2)
    assert again[::2] == first
    assert (again[1::2] != first) == drawn


# Step one


def test_tasks():
    answer = ' Here are some:\n```json\n["Sort mail", " Find a  shop ", "sort MAIL", "Find laws"]\n```'
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tasks(chat := Scripted(answer), "long-short") == ["Sort mail", "Find a  shop", "Find laws"]
    assert chat.prompts == [PROMPTS["long-short"].brainstorm]


@pytest.mark.parametrize("kind", ["short-long", "short-short"])
def test_tasks_of_the_prompt_are_not_the_models(kind):
    own = [line[2:] for line in PROMPTS[kind].brainstorm.splitlines() if line.startswith("- For")]
    assert len(own) == 3
    assert tasks(Scripted([*own, "Find laws"]), kind) == ["Find laws"]
    with pytest.raises(InvalidValueError, match="1 x no task but those of the prompt"):
        tasks(Scripted(own), kind, attempts=1)


NO_TASKS = [{"tasks": ["Find laws"]}, "Find laws", '["Find laws", "Find', [], ["Find laws", 3], ["Find laws", " "]]


@pytest.mark.parametrize("answer", NO_TASKS)
def test_what_is_no_list_of_tasks(answer):
    with pytest.raises(InvalidValueError, match=r"expected a JSON list of tasks, got '3 unusable answers'. Why: 3 x "):
        tasks(chat := Scripted(answer), "short-long")
    assert len(chat.prompts) == 3


def test_unusable_answers_before_the_list_are_counted():
    with pytest.warns(UserWarning, match="2 answers are no list of tasks: left out .2 x no JSON") as warned:
        assert tasks(Scripted("no", "never", ["Find laws"]), "short-long") == ["Find laws"]
    assert warned[0].filename == __file__


# Step two


@pytest.mark.parametrize("kind", PROMPTS)
def test_rows_are_training_data(kind, tmp_path):
    """Written as a file they load, with the task as the instruction of the query alone."""
    made = examples(Obliging(kind), kind, ["Find laws", "Find shops", "Find laws", "Find shops"])
    columns = ["query", "positive", *(f"negative_{number + 1}" for number in range(len(KEYS[kind]) - 2))]
    assert list(made.rows) == [*columns, "instruction"]
    assert list(made.rows["instruction"]) == ["Find laws", "Find shops", "Find laws", "Find shops"]
    assert made.attempts["ok"].all()
    for row, output in zip(made.rows.to_numpy(), made.attempts["output"], strict=True):
        assert tuple(row[:-1]) == tuple(json.loads(output)[key] for key in KEYS[kind])
    made.rows.to_json(tmp_path / "made.jsonl", orient="records", lines=True)
    options = {"tokenizer": backbones.load_tokenizer("tiny-llama"), "max_length": 8}
    for blend, names, plainly in ((False, ["made/1", "made/2"], None), (True, ["blend"], "")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loaded = data.load(tmp_path / "made.jsonl", "contrastive", blend=blend, **options)
        assert list(loaded.datasets) == names
        assert [one.column_names for one in loaded.datasets.values()] == [columns] * len(names)
        assert {said for text, said in loaded.examples()} == {"Find laws", "Find shops", plainly}


WRAPPED = [
    "{}",
    "```json\n{}\n```",
    "```\n{}```",
    "Of course! Here it is:\n\n{}\n\nI hope that helps (a bit).",
    "\n {} ",
]


@pytest.mark.parametrize("kind", PROMPTS)
@pytest.mark.parametrize("around", WRAPPED)
def test_a_fence_or_prose_around_the_object_does_no_harm(kind, around):
    said = good(kind)
    made = examples(Scripted(around.replace("{}", json.dumps(said, indent=2))), kind, [TASK])
    assert list(made.rows.iloc[0]) == [*said.values(), TASK]


def bad(kind):
    """Answers that must not be used, by what the reason says."""
    first, second, before, last = (KEYS[kind][place] for place in (0, 1, -2, -1))
    whole = json.dumps(good(kind))
    copied = next(line for line in PROMPTS[kind].example.splitlines() if line.startswith(f'- "{last}"'))
    return {
        "no JSON": "I can't do that.",
        "broken or cut JSON: Unterminated": whole[:-5],
        "broken or cut JSON: Expecting ',' delimiter": whole[:-1],
        "broken or cut JSON: Expecting property name": whole.replace('"', "'"),
        "broken or cut JSON: too deep": "[" * 100_000,
        "broken or cut JSON: Invalid control": whole.replace("number", "\n"),
        "more than one JSON value": whole + "\n" + json.dumps(good(kind)),
        "more than one JSON value ": whole + " {as asked}",
        "valid dictionary": [good(kind)],
        "a key twice": whole[:-1] + f', "{last}": "another"}}',
        f"{last}: Field required": good(kind, **{last: None}),
        "note: Extra inputs": good(kind, note="what I thought"),
        "Query: Extra inputs": {key.replace(first, "Query"): text for key, text in good(kind).items()},
        f"{first}: String should have at least 1": good(kind, **{first: " \n"}),
        f"{second}: Input should be a valid string": good(kind, **{second: 7}),
        f"{last}: Input should be a valid string": good(kind, **{last: ["one", "two"]}),
        f"{last}: Input should be a valid string ": whole.replace(f'"{last} number', f'"\\ud800{last} number'),
        f"{before} and {last} say the same": good(kind, **{before: "Not spam", last: "not  SPAM "}),
        f"{first} and {second} say the same": good(kind, **{first: "Birds", second: "Birds"}),
        f"{first} copies the prompt": good(kind, **{first: TASK.upper()}),
        f"{last} copies the prompt": good(kind, **{last: copied.partition(": ")[2]}),
    }


@pytest.mark.parametrize(("kind", "reason"), [(kind, reason) for kind in PROMPTS for reason in bad(kind)])
def test_what_is_not_as_asked_is_not_used(kind, reason):
    made = examples(Scripted(bad(kind)[reason]), kind, [TASK])
    assert made.rows.empty
    assert "instruction" in made.rows
    (attempt,) = made.attempts.to_dict("records")
    assert (attempt["kind"], attempt["task"], attempt["attempt"], attempt["ok"]) == (kind, TASK, 1, False)
    assert reason.strip() in attempt["reason"]


def test_a_short_label_may_stand_in_the_prompt():
    said = good("long-short", label="clear", misleading_label="wrong")
    assert len(examples(Scripted(said), "long-short", ["Sort texts: clear or wrong"]).rows) == 1


def test_the_attempts_say_how_each_call_went():
    one, two = good("long-short"), good("long-short")
    chat = Scripted("no", one, one, "```", {"label": "x"}, two)
    made = examples(chat, "long-short", ["Sort mail", "Sort birds", "Sort laws"], attempts=3)
    assert list(made.attempts["task"]) == ["Sort mail"] * 2 + ["Sort birds"] * 3 + ["Sort laws"]
    assert list(made.attempts["attempt"]) == [1, 2, 1, 2, 3, 1]
    assert list(made.attempts["ok"]) == [False, True, False, False, False, True]
    assert list(made.attempts["reason"]) == [
        "no JSON", "", "repeats an earlier example", "no JSON",
        "input_text: Field required; misleading_label: Field required", "",
    ]  # fmt: skip
    assert list(made.attempts["output"].iloc[[0, 3]]) == ["no", "```"]
    assert list(made.rows["query"]) == [one["input_text"], two["input_text"]]
    assert list(made.rows["instruction"]) == ["Sort mail", "Sort laws"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tasks(str, "long-long"), UnknownNameError, "kind of synthetic task.*long-short, short-short"),
        (lambda: examples(str, "short-sort", ["a"]), UnknownNameError, "Did you mean"),
        (lambda: examples(str, "short-long", []), InvalidValueError, "at least one task"),
        (lambda: examples(str, "short-long", "Find laws"), InvalidValueError, "a list of at least one task"),
        (lambda: examples(str, "short-long", ["Find laws", " "]), InvalidValueError, "tasks: expected sentences"),
        (lambda: examples(str, "short-long", ["Find laws"], attempts=0), InvalidValueError, "attempts"),
        (lambda: tasks(str, "short-long", attempts=True), InvalidValueError, "attempts"),
        (lambda: tasks(lambda prompt: None, "short-long"), InvalidValueError, "returns the answer as text"),
        (lambda: synthetic.chat_model("tiny-llama"), InvalidValueError, "chat template"),
        (lambda: synthetic.chat_model("tiny-llama", max_new_tokens=0), InvalidValueError, "max_new_tokens"),
        (lambda: synthetic.chat_model("tiny-llama", temperature=-1), InvalidValueError, "temperature"),
    ],
)
def test_impossible_calls(call, error, message):
    with pytest.raises(error, match=message):
        call()


# A chat model


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """A tiny random backbone with a chat template, as a folder."""
    folder = tmp_path_factory.mktemp("chatty")
    backbones.load_decoder("tiny-llama", device="cpu", dtype="float32", lm_head=True).save_pretrained(folder)
    backbones.load_tokenizer("tiny-llama").save_pretrained(folder)
    template = "{% for one in messages %}{{ one['role'] }}: {{ one['content'] }}\n{% endfor %}so: "
    (folder / "chat_template.jinja").write_text(template)
    return str(folder)


def test_a_backbone_answers(chatty):
    def answers(temperature, seed=0):
        chat = synthetic.chat_model(chatty, max_new_tokens=12, seed=seed, temperature=temperature, device="cpu")
        return [chat("Which bird?"), chat("Which bird?")]

    sampled = answers(1.0)
    assert sampled == answers(1.0)
    assert sampled != answers(1.0, seed=1)
    assert sampled[0] != sampled[1]
    likeliest = answers(0)
    assert likeliest[0] == likeliest[1]
    assert not any("Which bird" in answer for answer in sampled + likeliest)


def test_its_answer_is_the_likeliest_continuation_of_the_chat(chatty):
    """Token by token, without a cache."""
    model = backbones.load_decoder(chatty, device="cpu", lm_head=True)
    tokenizer = backbones.load_tokenizer(chatty)
    ids = tokenizer("user: Which bird?\nso: ", add_special_tokens=False, return_tensors="pt")["input_ids"]
    start = ids.shape[1]
    for _ in range(5):
        token = model(ids).logits[:, -1:].argmax(-1)
        ids = token.new_tensor([[*ids[0].tolist(), token.item()]])
        if token.item() == tokenizer.eos_token_id:
            break
    expected = tokenizer.decode(ids[0, start:], skip_special_tokens=True).strip()
    assert synthetic.chat_model(chatty, max_new_tokens=5, temperature=0, device="cpu")("Which bird?") == expected


def test_a_random_backbone_writes_nothing_usable(chatty):
    chat = synthetic.chat_model(chatty, max_new_tokens=6, device="cpu")
    made = examples(chat, "short-long", ["Find laws"])
    assert made.rows.empty
    assert list(made.attempts["ok"]) == [False]
    assert made.attempts["reason"].str.len().all()
