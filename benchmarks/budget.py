"""What a scale costs, counted from its recipes: tokens, passes and estimated minutes, by notebook and by record.

    python benchmarks/budget.py [--scale gpu] [--tokens-per-second 100000] [--pass-ms 50] [--seeds 1] [--csv FILE]

Nothing trains. Tokens are counted on a sample of the rows that a stage reads; stages that the cache keeps from an
earlier line count once. A pass is one run of the decoder over one column of a micro-batch, forward and backward, or of
an encoded batch. The minutes are a pass's least time (the launching of kernels, which decides on a GPU for a small
backbone) or that of its tokens, whichever is more. The default figures are assumed, for SmolLM2-135M on an H100; with
your own (``benchmarks/speed.py --what mntp`` measures one) the table is for your machine:

    python benchmarks/budget.py --scale night --tokens-per-second 130 --pass-ms 0 --seeds 3

Each measured model is taken to read the offline suites once, and half of the retrieval task for each point of a curve;
probes of states in place of the suites read about as much. Real English, which lies on some machines, texts that are
written word by word, k-means, and the loading of models are not in it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd

from workbook import backbones, methods
from workbook.data.sources import INSTRUCTIONS, SOURCES
from workbook.evaluation import OFFLINE_SUITES, tasks
from workbook.experiments import EXPERIMENTS, Experiment, Variant
from workbook.experiments.causal2vec import last_token
from workbook.methods import Chain
from workbook.methods.stages import COLUMNS
from workbook.resolved import digest
from workbook.scale import RECORDED, SCALES, Scale
from workbook.templates import Template
from workbook.training import Stage

SAMPLE = 200
"""Rows of a data set on which tokens are counted."""

BATCH = 32
"""Texts that are encoded at once."""

POOLING = 0.1
"""A step of what follows a frozen decoder, as a share of a pass: assumed."""

tokenizer_of = lru_cache(backbones.load_tokenizer)

LIVE = {
    "00_start": (),
    "01_attention": (),
    "02_llm2vec": (Variant("llm2vec", "llm2vec", ("mntp", "simcse", "contrastive")),),
    "03_nv_embed": (Variant("nv-embed", "nv-embed", ("retrieval", "blended")),),
    "04_lens": (Variant("lens", "lens", ("distilled",)),),
    "05_causal2vec": (
        last_token("last token"),
        Variant("causal2vec", "causal2vec", ("contextual",), {"suffix": "answer"}),
    ),
    "06_anchor": (Variant("anchor", "anchor", ("reconstruction", "contrastive"), {"suffix": "keywords"}),),
    "07_compare": tuple(EXPERIMENTS["07_methods"].variant(name) for name in ("mean", "lens")),
}
"""What each notebook trains in front of its reader."""

READINGS = {"00_start": 3, "01_attention": 6, "05_causal2vec": 4, "07_compare": 10}
"""Models with which a notebook reads the texts of the suites, or about as much; two, before and after, elsewhere."""


@dataclass
class Cost:
    """What is read: trained and encoded tokens, passes of either kind, and the work.

    Attributes:
        trained: Tokens that the decoder reads in training, without padding.
        encoded: Tokens that it reads without a gradient.
        passes: Passes through the decoder, those of evaluation included.
        launched: The same, each by its time; a forward and backward pass through frozen weights counts 1.
        work: Tokens likewise: a token that trains adapters counts 1, one that is encoded a half.
    """

    trained: float = 0.0
    encoded: float = 0.0
    passes: float = 0.0
    launched: float = 0.0
    work: float = 0.0

    def minutes(self, tokens_per_second: float, pass_ms: float) -> float:
        """Estimated minutes: of the tokens, or of launching the passes, whichever is more."""
        return max(self.work / tokens_per_second, self.launched * pass_ms / 1000) / 60


def cost_of_stage(chain: Chain, stage: Stage, backbone: str) -> Cost:
    """The cost of training one stage; of a frozen decoder only that of what follows it, see :func:`of_reading`."""
    if stage.frozen:
        return Cost(launched=stage.steps * POOLING)
    columns, mini_batch = COLUMNS.get(stage.objective, 2 + (stage.negatives or 0)), stage.options.get("mini_batch_size")
    if not mini_batch:  # all columns of a whole batch are read in one pass; what is written takes more
        columns = {"reconstruction": 3, "llama2vec": 3, "gritlm": 2}.get(stage.objective, 1)
    layout = chain.layout().model_dump_json()
    row = tokens_of_row(stage.data, layout, stage.objective, stage.negatives or 0, stage.max_length, backbone)
    trained = stage.steps * stage.batch_size * row
    micro = stage.accumulation * math.ceil(stage.batch_size / stage.accumulation / (mini_batch or stage.batch_size))
    # The backward pass through frozen weights takes as long as the forward pass, and twice as long if they train too.
    # GradCache and checkpointing each add a forward pass.
    again = bool(mini_batch) + stage.gradient_checkpointing
    share = ((2 if stage.adapter else 3) + again) / 2
    passes = stage.steps * micro * columns * (1 + bool(mini_batch))
    return Cost(trained, 0, passes, stage.steps * micro * columns * share, trained * share)


def of_reading(chain: Chain, stage: Stage, backbone: str) -> Cost:
    """The cost of reading the texts of a stage once, whose decoder is frozen."""
    rows = min(stage.limit or math.inf, stage.steps * stage.batch_size)
    row = tokens_of_row(stage.data, chain.layout().model_dump_json(), stage.objective, 0, stage.max_length, backbone)
    passes = math.ceil(2 * rows / BATCH)
    return Cost(0, rows * row, passes, passes / 2, rows * row / 2)


@lru_cache
def tokens_of_row(source: str, layout: str, objective: str, negatives: int, max_length: int, backbone: str) -> float:
    """Tokens that the decoder reads of a row of a stage, in all its passes: the mean over a sample of its data."""
    if objective == "mntp":
        return max_length
    template, tokenizer = Template.model_validate_json(layout), tokenizer_of(backbone)

    def mean(texts: list[str], asked: str = "") -> float:
        rows = template.encode(tokenizer, texts, asked or None, max_length, contextual_tokens=1)
        return sum(len(one.input_ids) for one in rows) / len(rows)

    if objective == "simcse":
        texts = SOURCES[source]["texts"]()
        return 2 * mean(texts[:: math.ceil(len(texts) / SAMPLE)])
    total = count = 0
    for pairs in SOURCES[source]["pairs"]().values():
        rows = pairs.to_pandas().iloc[:: math.ceil(len(pairs) / SAMPLE)]
        query, document = (rows[name].iloc[0] for name in INSTRUCTIONS)
        hard = [f"negative_{1 + n % 7}" for n in range(negatives)]
        sides = [mean(rows["query"].tolist(), query), mean(rows["positive"].tolist(), document)]
        # A blend repeats the negatives of rows that have few.
        sides += [mean(rows[name if name in rows else "negative_1"].tolist(), document) for name in hard]
        total, count = total + len(pairs) * sum(sides), count + len(pairs)
    return (2 if objective in ("reconstruction", "llama2vec") else 1) * total / count


@lru_cache
def cost_of_suites(sizes: Scale, layout: str, backbone: str, some: tuple[str, ...] = OFFLINE_SUITES) -> Cost:
    """The cost of encoding each text of the suites once, half of them with an instruction."""
    template, tokenizer = Template.model_validate_json(layout), tokenizer_of(backbone)
    texts = texts_of_suites(sizes, some)
    sample = texts[:: math.ceil(len(texts) / SAMPLE)]
    asked = "Retrieve the description that fits"
    lengths = [
        len(row.input_ids)
        for instruction in (None, asked)
        for row in template.encode(tokenizer, sample, instruction, sizes.max_length, contextual_tokens=1)
    ]
    encoded = len(texts) * sum(lengths) / len(lengths)
    passes = math.ceil(len(texts) / BATCH)
    return Cost(0, encoded, passes, passes / 2, encoded / 2)


@lru_cache
def texts_of_suites(sizes: Scale, some: tuple[str, ...]) -> list[str]:
    """The texts of tasks, each once."""
    return list(dict.fromkeys(text for task in tasks(some, sizes) for text in _texts(task.dataset)))


def _texts(data: object) -> Iterator[str]:
    """All texts of a task's data, whatever its form: those of ids and labels are short and left out."""
    if isinstance(data, dict):
        for value in data.values():
            yield from _texts(value)
    elif hasattr(data, "column_names"):
        for name in data.column_names:
            if name in ("text", "sentences", "sentence1", "sentence2"):
                yield from data[name]


def of_variant(variant: Variant, scale: str, backbone: str, known: set[str], measured: str | None = None) -> list[Cost]:
    """The costs of training a variant, without the stages that are known, which it adds to."""
    costs, chain = [], variant.chain(scale, backbone)
    for other in (variant.start_from, variant.hybrid_with):
        if other:
            costs += of_variant(other, scale, backbone, known, measured if other is variant.hybrid_with else None)
    begun = variant.start_from.name if variant.start_from else ""
    key = digest([begun, chain.resolved()])
    stages = variant.trained_by(scale, backbone).stages
    for stage in stages:
        key = digest([key, stage.resolved(), stage.data, measured if stage is stages[-1] else None])
        if key not in known:
            known.add(key)
            costs.append(cost_of_stage(chain, stage, backbone))
            if stage.frozen and (states := digest([begun, stage.data, stage.limit, stage.max_length])) not in known:
                known.add(states)  # which all that follows this decoder shares
                costs.append(of_reading(chain, stage, backbone))
    return costs


def of_record(experiment: Experiment, scale: str, backbone: str, seeds: int, known: set[str]) -> tuple[int, list[Cost]]:
    """Number of cells of a record, and their costs without the stages that are known."""
    sizes, costs, cells = experiment.sizes(scale), [], experiment.cells(range(seeds))
    evaluator = experiment.evaluator(sizes) if experiment.evaluator else None
    for variant, seed in cells:
        layout = variant.chain(scale, backbone).layout().model_dump_json()
        mine = {key.removeprefix(f"{seed} ") for key in known if key.startswith(f"{seed} ")}
        costs += of_variant(variant, scale, backbone, mine, evaluator.name if evaluator else None)
        known |= {f"{seed} {key}" for key in mine}
        if experiment.measure:
            costs.append(cost_of_suites(sizes, layout, backbone))
        if evaluator and variant.stages:
            few = sizes.model_copy(update={"documents": sizes.documents // 2})
            last = variant.trained_by(scale, backbone).stages[-1]
            times = 1 + math.ceil(last.steps / evaluator.every)
            costs += times * [cost_of_suites(few, layout, backbone, ("DocsRetrieval",))]
    return len(cells), costs


def table(scale: str, backbone: str, tokens_per_second: float, pass_ms: float, seeds: int = 1) -> pd.DataFrame:
    """One row for each notebook and each record: tokens, passes, and minutes.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.
        tokens_per_second: Tokens that the device trains with adapters.
        pass_ms: Least milliseconds of a pass, forward and backward.
        seeds: Seeds of the records.
    """
    rows = []
    for name, variants in LIVE.items() if scale not in RECORDED else ():
        known = set()
        costs = [cost for variant in variants for cost in of_variant(variant, scale, backbone, known)]
        layout = methods.get("mean").chain.layout().model_dump_json()
        costs += READINGS.get(name, 2) * [cost_of_suites(SCALES[scale], layout, backbone)]
        rows.append(("notebook", name, len(variants), costs))
    known = set()
    for name, experiment in EXPERIMENTS.items():
        if name[0].isdigit():
            rows.append(("record", name, *of_record(experiment, scale, backbone, seeds, known)))
    return pd.DataFrame(
        {
            "what": what,
            "name": name,
            "models": models,
            "trained tokens": round(sum(cost.trained for cost in costs)),
            "encoded tokens": round(sum(cost.encoded for cost in costs)),
            "passes": round(sum(cost.passes for cost in costs)),
            "minutes": round(sum(cost.minutes(tokens_per_second, pass_ms) for cost in costs), 2),
        }
        for what, name, models, costs in rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="gpu")
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--tokens-per-second", type=float, default=100_000)
    parser.add_argument("--pass-ms", type=float, default=50)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--csv", help="also write the table into this file")
    options = parser.parse_args()
    if options.tokens_per_second <= 0 or options.pass_ms < 0 or options.seeds < 1:
        parser.error("expected a positive --tokens-per-second, a --pass-ms of at least 0 and --seeds of at least 1")
    found = table(options.scale, options.backbone, options.tokens_per_second, options.pass_ms, options.seeds)
    print(found.to_string(index=False, formatters={name: "{:,}".format for name in found.columns[2:]}))
    for what, part in found.groupby("what"):
        total = part["minutes"].sum()
        print(f"{what}s: {part['trained tokens'].sum():,} tokens trained, {part['encoded tokens'].sum():,} encoded, "
              f"{part['passes'].sum():,} passes, {total:,.0f} minutes ({total / 60:,.1f} hours)")  # fmt: skip
    if options.csv:
        found.to_csv(options.csv, index=False)


if __name__ == "__main__":
    main()
