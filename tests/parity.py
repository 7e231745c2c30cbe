"""Reading the fixtures under tests/parity."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

FOLDER = Path(__file__).parent / "parity"


class Fixture:
    """One fixture: what it is about, its inputs, the expected values."""

    def __init__(self, name):
        self.folder = FOLDER / name
        self.about = json.loads((self.folder / "about.json").read_text())
        self.expected = load_file(self.folder / "expected.safetensors")

    @property
    def texts(self):
        return json.loads((self.folder / "inputs.json").read_text())

    @property
    def tensors(self):
        return load_file(self.folder / "inputs.safetensors")

    def decoder(self, attn_implementation="sdpa"):
        folder = self.folder / self.about.get("backbone", ".")
        return AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation=attn_implementation).eval()

    def tokenizer(self, padding_side):
        tokenizer = AutoTokenizer.from_pretrained(self.folder / self.about["tokenizer"])
        tokenizer.pad_token = tokenizer.unk_token if "<unk>" in self.about.get("padding", "") else tokenizer.eos_token
        tokenizer.padding_side = padding_side
        return tokenizer

    def tolerance(self, kind="vectors"):
        bounds = self.about["tolerance"]
        return bounds if "atol" in bounds else bounds[kind]

    def close(self, got, key, where=None, kind="vectors"):
        """Assert closeness to the expected value, at the places of a boolean mask if one is given."""
        got, expected = got.float(), self.expected[key]
        if where is not None:
            got, expected = got[where], expected[where]
        torch.testing.assert_close(got, expected, **self.tolerance(kind))


def assert_relative(got, expected, bound):
    """Assert that the error, as a share of the expected values' length, is at most ``bound``."""
    error = ((got - expected).norm() / expected.norm()).item()
    assert error <= bound, f"relative error {error:.1e}, at most {bound:.0e}"
