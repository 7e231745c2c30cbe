"""Tokens per second, training and encoding: this library and plain sentence-transformers, in one run.

    python benchmarks/speed.py [--what contrastive mntp encode] [--dtypes float32 bfloat16] [--steps 6]
                               [--texts 600] [--repeats 3]

Both sides have SmolLM2-135M with bidirectional attention and mean pooling, the same texts at the same length and, in
training, the same adapters. Ours are the stages of LLM2Vec's recipe at scale ``cpu``. Plain sentence-transformers is
its Transformer and Pooling modules on the same weights, its trainer and its own InfoNCE; for MNTP, which it does not
have, a loss of the logits of all tokens, as in a tutorial. Its weights have the dtype that is measured, but for the
adapters, which are float32 under the trainer's ``bf16=True``.

Ours is trained as it is and compiled (``Stage.compiled``); a process compiles a shape of batch when it first meets it,
which the repeats after the first do not pay again. All take turns, so that a busy machine slows them all, and with one
thread (``OMP_NUM_THREADS=1``) seconds are those of the process: of the time that it really had. Printed are the median
of the repeats and their range; ours as a multiple of the other, which should be at least 1.5 in training and 1.3 in
encoding; and the share of a bare product: of the matrices of all linear layers with 1,024 tokens, twice where there is
a gradient, once where there is none. A first step, which allocates memory, is not counted.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import peft
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import nn
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging

import workbook
from workbook import attention, backbones
from workbook.corpora.docs import load_docs
from workbook.data.rows import load
from workbook.files import cache_path
from workbook.objectives.mntp import mask_tokens
from workbook.probes.cost import clock
from workbook.training import Evaluator, Recipe, Stage, train

BACKBONE = "smollm2-135m"


def plain(dtype: str) -> SentenceTransformer:
    """Plain sentence-transformers, told to leave the chat template alone and to look both ways."""
    transformer = Transformer(
        str(backbones.resolve(BACKBONE)),
        model_kwargs={"dtype": getattr(torch, dtype), "attn_implementation": "sdpa"},
        modality_config={"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        module_output_name="token_embeddings",
    )
    attention.set_mode(transformer.model, "bidirectional")
    assert attention.probe(transformer.model) == "bidirectional"
    return SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), "mean")])


def ours(dtype: str) -> SentenceTransformer:
    """The same model as a chain of this library."""
    return workbook.build("mean", attention="bidirectional", dtype=dtype)


class PlainMNTP(nn.Module):
    """Masked next-token prediction from the logits of all tokens."""

    def __init__(self, model: SentenceTransformer):
        super().__init__()
        self.model = model

    def forward(self, features: Sequence[dict[str, torch.Tensor]], labels: torch.Tensor | None = None) -> torch.Tensor:
        """The mean loss of the masked tokens."""
        (column,) = features
        tokenizer, real = self.model.tokenizer, column["attention_mask"].bool()
        mask_id = tokenizer.convert_tokens_to_ids("_")
        real[:, 0] = False
        ids, targets = mask_tokens(column["input_ids"], real, mask_token_id=mask_id, vocabulary=len(tokenizer))
        states = self.model(column | {"input_ids": ids})["token_embeddings"]
        logits = states @ self.model[0].model.get_input_embeddings().weight.to(states.dtype).T
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets[:, 1:].flatten())


def seconds() -> float:
    """A clock."""
    return clock(torch.device(backbones.capability()["device"]))


class Clock(TrainerCallback):
    """When each step ended."""

    def __init__(self):
        self.ends = []

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        """Note the time."""
        self.ends.append(seconds())


def train_ours(stage: Stage, dtype: str) -> float:
    """Tokens per second of a stage of ours; what it leaves in the cache is removed."""
    seed = time.time_ns() % 2**32  # a seed seen before would be taken from the cache
    clock = Evaluator("seconds", 1, lambda model: {"clock": seconds()})
    trained = train(ours(dtype), Recipe(stages=(stage,)), seed=seed, progress=False, evaluator=clock)
    shutil.rmtree(cache_path("stages", trained.manifest["stages"][stage.name]["key"][:24]))
    first, last = trained.curve.iloc[1], trained.curve.iloc[-1]
    return (last["tokens"] - first["tokens"]) / (last["clock"] - first["clock"])


def train_plain(stage: Stage, dtype: str) -> float:
    """Tokens per second of the same by sentence-transformers' own trainer."""
    model = plain(dtype)
    model.max_seq_length = stage.max_length
    config = peft.LoraConfig(
        r=stage.adapter.rank, lora_alpha=stage.adapter.alpha, target_modules=list(stage.adapter.targets)
    )
    model.add_adapter(config)
    data = load(**stage.reading(), tokenizer=model.tokenizer)
    ((name, dataset),) = data.datasets.items()
    if stage.objective == "mntp":
        loss = PlainMNTP(model)
        texts = model.tokenizer.batch_decode(np.array(dataset[: stage.batch_size * stage.steps]["chunk"]))
        dataset, prompts = dataset.from_dict({"text": texts}), None
    else:
        loss = MultipleNegativesRankingLoss(model, scale=1 / stage.options["temperature"])
        prompts = {column: f"{prompt} " for column, prompt in data.prompts[name].items()}
    read, clock = [], Clock()

    class Counting(SentenceTransformerTrainer):
        def training_step(self, model: nn.Module, inputs: dict, *args: object, **kwargs: object) -> torch.Tensor:
            masks = (value for key, value in inputs.items() if key.endswith("attention_mask"))
            read.append(sum(int(mask.sum()) for mask in masks))
            return super().training_step(model, inputs, *args, **kwargs)

    folder = cache_path("benchmarks")
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        max_steps=stage.steps,
        per_device_train_batch_size=stage.batch_size,
        learning_rate=stage.learning_rate,
        bf16=dtype == "bfloat16",
        prompts=prompts,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=model.device.type == "cpu",
    )
    trainer = Counting(model=model, args=arguments, train_dataset=dataset, loss=loss, callbacks=[clock])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return sum(read[1:]) / (clock.ends[-1] - clock.ends[0])


def bare(dtype: str, passes: int) -> float:
    """Tokens per second of the products alone, of a decoder's linear layers with 1,024 tokens."""
    decoder = backbones.load_decoder(BACKBONE, dtype=dtype)
    layers = [layer.weight for layer in decoder.modules() if isinstance(layer, nn.Linear)]
    tokens, inputs = 1024, {}
    for weight in layers:
        inputs.setdefault(weight.shape[1], torch.randn(tokens, weight.shape[1], dtype=weight.dtype).to(weight.device))
    times = []
    with torch.no_grad():
        for _ in range(2):
            began = seconds()
            for weight in layers:
                nn.functional.linear(inputs[weight.shape[1]], weight)
            times.append(seconds() - began)
    return tokens / times[-1] / passes


def documents(count: int) -> tuple[list[str], int]:
    """Documents of the docs corpus, and how many tokens they are; both are printed."""
    texts = load_docs().split("test")["document"].head(count).tolist()
    tokenizer = backbones.load_tokenizer(BACKBONE)
    tokens = sum(map(len, tokenizer(texts, add_special_tokens=False)["input_ids"]))
    print(f"{len(texts)} texts, {tokens} tokens ({tokens / len(texts):.0f} each), {torch.get_num_threads()} threads")
    return texts, tokens


def in_turns(
    models: dict[str, SentenceTransformer], texts: list[str], repeats: int
) -> tuple[dict[str, list[float]], float]:
    """Seconds of every repeat of each of two models, and the smallest cosine between their vectors."""
    times = {name: [] for name in models}
    for _ in range(repeats):
        vectors = []
        for name, model in models.items():
            began = seconds()
            vectors.append(model.encode(texts, show_progress_bar=False))
            times[name].append(seconds() - began)
    one, other = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in vectors)
    return times, (one * other).sum(axis=1).min()


def begun(description: str | None) -> tuple[list[str], int, int]:
    """Texts, their tokens and the number of repeats that the command line asks for; the machine is printed."""
    options = parser(description).parse_args()
    logging.disable_progress_bar()
    print(f"this machine suggests {backbones.capability()}")
    return *documents(options.texts), options.repeats


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that the benchmarks of encoding share."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--texts", type=int, default=600)
    made.add_argument("--repeats", type=int, default=3)
    return made


def told(what: str, measured: dict[str, list[float]], bound: float) -> None:
    """Print the rates of both sides, tokens per second, their ratio, and the share of the bare product."""
    medians = {name: statistics.median(rates) for name, rates in measured.items()}
    for name, rates in measured.items():
        share = f"{medians[name] / bound:.0%} of the bare product"
        print(f"{what:<21} {name:<9} {medians[name]:7.0f} tokens/s ({min(rates):.0f} to {max(rates):.0f}), {share}")
    for name in [name for name in medians if name != "plain"]:
        print(f"{what:<21} {name:<9} {medians[name] / medians['plain']:.2f} times plain", flush=True)


def encoding(dtype: str, texts: list[str], tokens: int, repeats: int) -> None:
    """Compare encoding."""
    bound = bare(dtype, passes=1)
    times, agreement = in_turns({"workbook": ours(dtype), "plain": plain(dtype)}, texts, repeats)
    told(f"encode {dtype}", {name: [tokens / t for t in spent] for name, spent in times.items()}, bound)
    print(f"smallest cosine between the two: {agreement:.4f}")


def training(name: str, dtype: str, steps: int, repeats: int) -> None:
    """Compare the steps of a stage."""
    (stage,) = workbook.recipe("llm2vec", "cpu").only(name).stages
    stage = stage.model_copy(update={"steps": steps, "warmup_steps": 1})
    sides: dict[str, Callable[[Stage, str], float]] = {
        "workbook": train_ours,
        "compiled": lambda stage, dtype: train_ours(stage.model_copy(update={"compiled": True}), dtype),
        "plain": train_plain,
    }
    bound, rates = bare(dtype, passes=2), {side: [] for side in sides}
    for _ in range(repeats):
        for side, measure in sides.items():
            rates[side].append(measure(stage, dtype))
    told(f"{name} {dtype}", rates, bound)


def main() -> None:
    own = parser(__doc__)
    for option, choices in (("--what", ["contrastive", "mntp", "encode"]), ("--dtypes", ["float32", "bfloat16"])):
        own.add_argument(option, nargs="+", choices=choices, default=choices)
    own.add_argument("--steps", type=int, default=6)
    options = own.parse_args()
    logging.disable_progress_bar()
    print(f"this machine suggests {backbones.capability()}")
    texts, tokens = documents(options.texts)
    for dtype in options.dtypes:
        for what in options.what:
            if what == "encode":
                encoding(dtype, texts, tokens, options.repeats)
            else:
                training(what, dtype, options.steps, options.repeats)


if __name__ == "__main__":
    main()
