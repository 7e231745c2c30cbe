"""States of texts that a decoder reads once: for training what follows a decoder that does not train itself."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from ..checksums import is_whole, verify_checksums, write_checksums
from ..files import atomic_folder, cache_path
from ..precision import without_autocast
from ..resolved import digest

if TYPE_CHECKING:
    from torch import nn

    from ..modules import Decoder

_FILE = "states.safetensors"
_OTHERWISE = ("inputs_embeds", "position_ids", "attention")  # inputs besides the tokens that change the states


@contextlib.contextmanager
def read_once(module: Decoder) -> Iterator[None]:
    """Within the block a decoder reads each text once: its states are kept, and found again by the text's tokens.

    The states of a text depend on no other text and on no padding, so that any batch is put together from those of its
    texts. They are kept in the decoder's own dtype, 2 bytes a number in half precision: 8,000 texts of 40 tokens of
    width 576 take 0.4 GB. When the block ends, they are written into the cache, from which a later block with the same
    weights maps them into memory.

    In the block the states have no gradient, whatever trains, and are computed as in evaluation: without dropout and
    autocast.

    Args:
        module: A decoder that reads text alone; its weights must not change in the block.

    Raises:
        DamagedFileError: Kept states are not those that were written.
        OutputError: The cache can't be written.
    """
    kept, read, before = _Kept(module), module.forward, module.__dict__.get("forward")

    def remembered(features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        if any(name in features for name in _OTHERWISE):
            return read(features, **kwargs)
        ids, mask = features["input_ids"], features["attention_mask"].bool()
        keys = [row[real].int().numpy().tobytes() for row, real in zip(ids.cpu(), mask.cpu(), strict=True)]
        new = list({key: index for index, key in enumerate(keys) if key not in kept.states}.values())
        if new:
            rows = {"input_ids": ids[new], "attention_mask": mask[new].to(ids.dtype)}
            with torch.no_grad(), without_autocast(ids.device), _evaluating(module.decoder):
                made = read(rows)["token_embeddings"]
            for index, states in zip(new, made, strict=True):
                kept.add(keys[index], states[mask[index]].cpu())
        states = torch.cat([kept.states[key] for key in keys]).to(module.decoder.device)
        features["token_embeddings"] = states.new_zeros(*mask.shape, states.shape[-1])
        features["token_embeddings"][mask] = states
        return features

    module.forward = remembered
    try:
        yield
    finally:
        del module.forward
        if before:
            module.forward = before
    kept.write()


class _Kept:
    """The states of texts by their tokens, those of earlier blocks mapped from the cache."""

    def __init__(self, module: Decoder):
        about = module.resolved()
        known = [about["attention"], about["configurations"], *map(metadata.version, ("torch", "transformers"))]
        self.folder = cache_path("states", digest([weights_sha256(module.decoder), *known])[:24])
        self.states: dict[bytes, torch.Tensor] = {}
        self.new: list[bytes] = []
        for part in sorted(path for path in self.folder.glob("*") if is_whole(path)):
            self._load(part)

    def _load(self, part: Path) -> None:
        verify_checksums(part, f"Delete {part} to read its texts again.")
        found = load_file(part / _FILE)
        lengths = found["lengths"].tolist()
        for ids, states in zip(found["ids"].split(lengths), found["states"].split(lengths), strict=True):
            self.states[ids.numpy().tobytes()] = states

    def add(self, key: bytes, states: torch.Tensor) -> None:
        self.states[key] = states
        self.new.append(key)

    def write(self) -> None:
        if not self.new:
            return
        ids = [torch.frombuffer(bytearray(key), dtype=torch.int32) for key in self.new]
        held = {
            "ids": torch.cat(ids),
            "lengths": torch.tensor([len(row) for row in ids]),
            "states": torch.cat([self.states[key] for key in self.new]),
        }
        with atomic_folder(self.folder / hashlib.sha256(b"".join(sorted(self.new))).hexdigest()[:24]) as folder:
            save_file(held, folder / _FILE)
            write_checksums(folder, (_FILE,))


@contextlib.contextmanager
def _evaluating(decoder: nn.Module) -> Iterator[None]:
    training = decoder.training
    decoder.eval()
    try:
        yield
    finally:
        decoder.train(training)


def weights_sha256(module: nn.Module) -> str:
    """Hex sha256 over the names and values of all weights.

    Args:
        module: Any module.
    """
    content = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return content.hexdigest()
