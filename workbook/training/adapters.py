"""The adapters of a finished training, as folders that peft reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ..backbones import CARRIED, shown
from ..checksums import is_whole, verify_checksums, write_checksums
from ..errors import InvalidValueError, MissingDataError
from ..files import atomic_folder, cache_path, refuse_filled
from .folder import finished_stages

_CONFIG = "adapter_config.json"


def export_adapters(folder: Path, output: Path) -> list[Path]:
    """Write the low-rank adapters of each stage, which the trained model holds merged into its weights.

    ``workbook.build(method, backbone, adapter=[..])`` with these folders in their order gives the trained decoder
    again; one alone belongs on what the stages before it left. What trains beside the decoder, such as a pooling with
    weights or the layers of a contextual token, has no adapters and is in the trained model alone.

    Args:
        folder: The folder that ``train`` or :func:`~.folder.train_into` wrote. Its stages must still be in the cache.
        output: A folder, absent or empty. It gets ``STAGE/decoder`` and, of a trainable encoder, ``STAGE/encoder``.

    Returns:
        The folders of the decoder's adapters, in the order of the stages.

    Raises:
        MissingDataError: No finished training in the folder, or the cache does not hold its stages any more.
        InvalidValueError: A stage that trained all parameters: what follows it has no backbone to belong on.
        OutputError: The output holds something, or can't be written.
        DamagedFileError: A file of the cache, or ``training.json``, is damaged.
    """
    backbone, keys = finished_stages(folder)
    kept = {name: cache_path("stages", key[:24]) for name, key in keys.items()}
    for name, place in kept.items():
        if not is_whole(place):
            raise MissingDataError(
                f"Expected stage {name} of {folder} in the cache {cache_path()}, where training keeps adapters; it is "
                "not there any more. Train again into another folder."
            )
        if not (place / "adapters" / "decoder" / _CONFIG).is_file():
            raise InvalidValueError(
                f"stage {name}", "one that trained adapters", "all parameters",
                "The trained model itself is what there is of it: load that.",
            )  # fmt: skip
    refuse_filled(output)
    named = CARRIED[backbone].hub if backbone in CARRIED else shown(backbone)
    with atomic_folder(output) as made:
        for name, place in kept.items():
            for part in sorted((place / "adapters").iterdir()):
                verify_checksums(part, "Train again into another folder.")
                own = made / name / part.name
                own.mkdir(parents=True)
                shutil.copy(part / "adapter_model.safetensors", own)
                config = json.loads((part / _CONFIG).read_text(encoding="utf-8"))
                config |= {"base_model_name_or_path": named} if part.name == "decoder" else {}
                (own / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
                write_checksums(own, ("*.safetensors", "*.json"))
    return [output / name / "decoder" for name in kept]
