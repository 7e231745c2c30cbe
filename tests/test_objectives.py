"""The objectives under sentence-transformers' own trainer."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments

import workbook
from workbook import backbones
from workbook.objectives import MNTP, Contrastive, SimCSE

TEXTS = [f"The {word} of a table." for word in ("name", "size", "row", "key", "sum", "type", "index", "order")]
ONE = {"text": TEXTS}
THREE = {"query": TEXTS, "positive": [text.upper() for text in TEXTS], "negative": TEXTS[::-1]}


def mntp(model):
    head = backbones.load_decoder("tiny-llama", dtype="float32", device="cpu", lm_head=True).get_output_embeddings()
    return MNTP(model, head, rate=0.5)


@pytest.mark.parametrize("options", [{}, {"bf16": True}], ids=str)
@pytest.mark.parametrize(
    ("objective", "data"),
    [(mntp, ONE), (SimCSE, ONE), (Contrastive, THREE), (lambda model: Contrastive(model, mini_batch_size=2), THREE)],
    ids=["mntp", "simcse", "contrastive", "gradcache"],
)
def test_trained_saved_and_loaded(objective, data, options, tmp_path):
    model = workbook.build("mean", "tiny-llama", attention="bidirectional", dtype="float32", device="cpu")
    before = [weight.detach().clone() for weight in model.parameters()]
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=4, logging_steps=1, learning_rate=1e-3,
        report_to=[], disable_tqdm=True, save_strategy="no", use_cpu=True, **options,
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_dict(data), loss=objective(model)
    )
    trainer.train()
    trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)  # else the model stays under autocast
    losses = torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses.isfinite().all()
    assert (losses > 0).all()
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    model.save(str(tmp_path / "model"))
    again = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), model.encode(TEXTS), atol=1e-5, rtol=0)
