"""Finding a published checkpoint, checking it, and making a model or a saved model of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import torch
from safetensors import safe_open
from sentence_transformers import SentenceTransformer
from transformers import MistralConfig, MistralModel, PreTrainedTokenizerFast

from .. import backbones
from ..errors import DamagedFileError, InvalidValueError, ModelNotFoundError, UnknownNameError
from ..files import atomic_folder, check_room, refuse_filled
from ..modules import Decoder
from ..modules.card import give_card
from .layouts import LAYOUTS, Layout, Parts, shapes_of
from .tensors import HEAD, WAY_OUT, Tensor, compare, conversion, tensors_in, weight_map


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint whose names, shapes and settings are as they should be; no weight is read yet.

    Attributes:
        name: As it was given.
        folder: Where it lies.
        layout: Its layout.
        parts: What its configuration says of it.
        config: Of the decoder.
        tensors: Those that are used, by published name.
        unused: Names of the others, all of them known.
    """

    name: str
    folder: Path
    layout: Layout
    parts: Parts
    config: MistralConfig
    tensors: dict[str, Tensor]
    unused: tuple[str, ...]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weights; of several the one that holds them all."""
        return reduce(torch.promote_types, (one.dtype for one in self.tensors.values()))

    @property
    def weights(self) -> int:
        """Number of its weights."""
        return sum(torch.Size(one.shape).numel() for one in self.tensors.values())

    def described(self) -> str:
        """What came in, in lines for readers."""
        config = self.config
        return (
            f"{self.layout.title}: {config.num_hidden_layers} layers, {config.hidden_size} wide, {self.parts.pooled}\n"
            f"Used: {len(self.tensors)} tensors, {self.weights:,} weights in {str(self.dtype).removeprefix('torch.')}\n"
            f"Left unused: {', '.join(self.unused) or 'none'}"
        )

    def load(self, dtype: torch.dtype | str | None = None) -> SentenceTransformer:
        """The model, on the CPU; its attention is measured.

        Args:
            dtype: A torch dtype or its name; None for that of the checkpoint.

        Raises:
            InvalidValueError: No such dtype, or numbers in a head that are not finite.
            DamagedFileError: A file that can't be read, or a tokenizer of another model.
            AttentionError: The measured attention is not bidirectional.
        """
        dtype = self.dtype if dtype is None else backbones.as_dtype(dtype)
        tokenizer = self._tokenizer()
        with backbones.loading(self.folder):
            renamed = {f"^{re.escape(self.parts.prefix)}": ""} if self.parts.prefix else None
            trunk = backbones.from_folder(
                MistralModel, self.folder, config=self.config, dtype=dtype, attn_implementation="sdpa",
                key_mapping=renamed,
            )  # fmt: skip
            pooling = self.parts.pooling({name: self._read(name).to(dtype) for name in self.parts.shapes})
        module = Decoder(
            trunk.eval(), tokenizer, "bidirectional", self.layout.template, max_length=self.layout.max_length
        )
        model = SentenceTransformer(modules=[module, pooling], device="cpu", similarity_fn_name="cosine")
        own = {"backbone": self.name, "published": True, "license": self.layout.license}
        give_card(model, f"{self.layout.title}, the published weights", **own)
        return model.eval()

    def _tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer as its file has it; transformers' class of the name it gives could build it anew."""
        with backbones.loading(self.folder, "a tokenizer (tokenizer.json) that transformers can load"):
            tokenizer = PreTrainedTokenizerFast.from_pretrained(self.folder)
        unknown = [mark for mark in self.layout.marks if mark not in tokenizer.get_vocab()]
        if unknown or len(tokenizer) > self.config.vocab_size:
            marks = f" that knows {' and '.join(self.layout.marks)}" if self.layout.marks else ""
            raise DamagedFileError(
                f"Expected a tokenizer of at most {self.config.vocab_size} tokens{marks} in {self.folder}, got "
                f"{len(tokenizer)} tokens{f' without {unknown[0]}' if unknown else ''}. {WAY_OUT}"
            )
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        tokenizer.padding_side = self.layout.padding
        return tokenizer

    def _read(self, name: str) -> torch.Tensor:
        with safe_open(self.tensors[name].file, "pt") as file:
            return file.get_tensor(name)


def find(name: str) -> Checkpoint:
    """A published checkpoint, checked but for its weights.

    Args:
        name: A local folder; or one of the Hugging Face ids of :data:`LAYOUTS`, fetched if it is not in the cache.

    Raises:
        UnknownNameError: Neither a folder nor one of these ids.
        ModelNotFoundError: It can't be fetched, or has no safetensors: no pickle is read.
        InvalidValueError: Another kind of model, or settings that this library has no module for.
        DamagedFileError: A file is missing or can't be read, or the tensors are not those that ``config.json`` asks
            for: the message names the first that is missing, unknown or of another shape.
    """
    folder = _folder(name)
    with backbones.loading(folder):
        config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    kind = config.get("model_type")
    layout = next((one for one in LAYOUTS if one.model_type == kind), None)
    if layout is None:
        kinds = " or ".join(f"{one.title} (model_type {one.model_type})" for one in LAYOUTS)
        hint = "Other language models are backbones: name it in workbook.build or with --backbone."
        raise InvalidValueError(str(folder), f"a checkpoint in the published layout of {kinds}", kind, hint)
    found = tensors_in(folder)
    parts = layout.parts(config, found)
    with backbones.loading(folder):
        trunk = MistralConfig(**parts.trunk)
        shapes = shapes_of(parts, trunk)
    compare(folder, shapes, found)
    unused = tuple(sorted(found.keys() - shapes.keys()))
    return Checkpoint(name, folder, layout, parts, trunk, {one: found[one] for one in shapes}, unused)


def load(name: str, dtype: torch.dtype | str | None = None) -> SentenceTransformer:
    """A published checkpoint as a model, on the CPU.

    Inputs are cut so that the end-of-text token stays, where the published code of NV-Embed cuts it off. For the
    vectors of that code pass the bare instruction as ``prompt``: the template writes what stands around it.

    Args:
        name: See :func:`find`.
        dtype: A torch dtype or its name; None for that of the checkpoint.

    Raises:
        UnknownNameError, ModelNotFoundError, InvalidValueError, DamagedFileError: As :func:`find` and
            :meth:`Checkpoint.load`.
        AttentionError: The measured attention is not bidirectional.
    """
    return find(name).load(dtype)


def convert(
    name: str, output: Path, dtype: torch.dtype | str | None = None, told: Callable[[str], None] = lambda line: None
) -> Checkpoint:
    """Write a published checkpoint as a folder that ``SentenceTransformer(output, trust_remote_code=True)`` loads.

    Args:
        name: See :func:`find`.
        output: A folder, absent or empty. It is there when all of it is written.
        dtype: A torch dtype or its name; None for that of the checkpoint.
        told: Function that is told what came in, as soon as that is known.

    Returns:
        What was written.

    Raises:
        OutputError: The output holds something, or can't be written, or has too little room.
        UnknownNameError, ModelNotFoundError, InvalidValueError, DamagedFileError, AttentionError: As :func:`load`.
    """
    refuse_filled(output)
    dtype = None if dtype is None else backbones.as_dtype(dtype)
    checkpoint = find(name)
    told(checkpoint.described())
    size = checkpoint.weights * (dtype or checkpoint.dtype).itemsize
    check_room(output, size, "the model", "Choose another folder, or half the size by --dtype bfloat16.")
    model = checkpoint.load(dtype)
    with atomic_folder(output) as made:
        model.save(str(made))
    return checkpoint


def _folder(name: str) -> Path:
    """The folder of a checkpoint; of one on the Hub nothing large is fetched that could not be read."""
    known = {one: layout for layout in LAYOUTS for one in layout.hub}
    if name not in known or Path(name).expanduser().is_dir():
        if not Path(name).expanduser().is_dir():
            raise UnknownNameError("published checkpoint", name, known, "A local folder works too.")
        return backbones.resolve(name)
    if known[name].title == "LENS":
        small = backbones.hub_folder(name, lambda folder: (folder / "config.json").is_file(), ("*.json", HEAD))
        index = small / "model.safetensors.index.json"
        if not (small / HEAD).is_file() and index.is_file() and "lm_head.weight" not in weight_map(index):
            raise ModelNotFoundError(
                f"Expected LENS' head of clusters as safetensors in {name}, found none: it is published as "
                f"lm_head.pth, a pickle, which can run code. {conversion(f'hf download {name} --local-dir FOLDER; ')}"
            )
    return backbones.resolve(name)
