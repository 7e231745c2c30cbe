"""Content by its sha256: checksums that tell damaged files, and folders of the cache that are made once."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from .errors import DamagedFileError
from .files import atomic_file, atomic_folder, locked

logger = logging.getLogger(__name__)

CHECKSUMS = "checksums.json"
_GUARDED = ("*.safetensors", "config.json", "decoder_config.json", "tokenizer.json", "tokenizer_config.json")


def sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes; an unchanged file is read once per process."""
    status = os.stat(path)
    return _sha256(os.path.abspath(path), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@functools.lru_cache(maxsize=1024)
def _sha256(path: str, *_: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_sha256(folder: Path, *patterns: str) -> str:
    """Hex sha256 over the names and bytes of some files of a folder.

    Args:
        folder: The folder.
        *patterns: Glob patterns; a file counts that matches any of them.
    """
    files = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    names = (f"{path.relative_to(folder)} {sha256(path)}\n" for path in files)
    return hashlib.sha256("".join(names).encode()).hexdigest()


def write_checksums(folder: Path, patterns: Iterable[str] = _GUARDED) -> None:
    """Write ``checksums.json``: the sha256 of a folder's files, by name.

    Subfolders belong to other modules, which may be written later: they are left out.

    Args:
        folder: The folder.
        patterns: Glob patterns of its files; by default those of a model's weights, configuration and tokenizer.

    Raises:
        OutputError: The folder can't be written.
    """
    sums = {file.name: sha256(file) for pattern in patterns for file in sorted(folder.glob(pattern))}
    with atomic_file(folder / CHECKSUMS) as temporary:
        temporary.write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def verify_checksums(folder: Path, hint: str, required: Iterable[str] = ()) -> None:
    """Compare a folder with its ``checksums.json``; a folder without one is accepted.

    safetensors notices a truncated file, but loads a flipped bit silently; so do configurations and tokenizers.

    Args:
        folder: The folder.
        hint: Last sentence of the message.
        required: Names of files that must have a checksum.

    Raises:
        DamagedFileError: A file is absent, its bytes differ, or it is required and has no checksum; the message names
            it.
    """
    path = folder / CHECKSUMS
    if not path.is_file():
        return
    try:
        sums = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise DamagedFileError(
            f"{path}: expected a checksum for each file, got no such JSON ({error}). {hint}"
        ) from error
    for name in required:
        if name not in sums:
            raise DamagedFileError(f"{path}: expected a checksum of {name}, got none. {hint}")
    for name, expected in sums.items():
        file = folder / name
        found = sha256(file) if file.is_file() else "no file"
        if found != expected:
            raise DamagedFileError(f"{file}: expected sha256 {expected}, got {found}. {hint}")


def is_whole(folder: Path) -> bool:
    """True if a folder has its ``checksums.json`` and every file named there, whatever they hold.

    A tool that cleans caches removes files by age, and may leave only some of a folder, or the folder alone.
    """
    try:
        return all((folder / name).is_file() for name in json.loads((folder / CHECKSUMS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return False


def make_once(path: Path, write: Callable[[Path], None]) -> None:
    """Make a folder of the cache, unless it is whole; of several processes that need it, one makes it.

    Args:
        path: The folder, below the cache. One that is whole is not locked: a cache may be read-only.
        write: Fills the folder that it is given, checksums included; see :func:`write_checksums`.

    Raises:
        OutputError: The cache can't be written.
    """
    name = f"{path.parent.name}-{path.name}"
    if is_whole(path):
        logger.info("%s: from the cache", name)
        return
    with locked(name):
        if not is_whole(path):  # another process may have made it meanwhile
            logger.info("%s: not in the cache, is made", name)
            with atomic_folder(path) as folder:
                write(folder)
