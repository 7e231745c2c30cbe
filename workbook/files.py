"""Where things live, and writing them so that nothing half-written is ever seen."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import filelock
import platformdirs
from safetensors import SafetensorError

from .errors import DamagedFileError, MissingDataError, OutputError

_CANNOT_WRITE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),  # full, over the quota, over the limit of a file
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.EBUSY, errno.ENAMETOOLONG),
}

ROOT = Path(__file__).resolve().parents[1]
"""The project's folder: the parent of the package."""


def data_path(*parts: str) -> Path:
    """Path of a file under the project's ``data/`` folder.

    Raises:
        MissingDataError: The file is absent; the message names the path and how to get it.
    """
    path = ROOT.joinpath("data", *parts)
    if not path.exists():
        raise MissingDataError(
            f"Expected the project's data at {path}, found nothing. "
            "The package is used from a checkout: clone the project and install it with `pip install -e .`."
        )
    return path


def cache_path(*parts: str) -> Path:
    """Path under the cache (``WORKBOOK_CACHE``, else the user's cache folder); nothing is created."""
    root = os.environ.get("WORKBOOK_CACHE") or platformdirs.user_cache_dir("workbook", appauthor=False)
    return Path(root).joinpath(*parts)


def sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes; a file that did not change since this process last asked is not read again."""
    status = os.stat(path)
    return _sha256(os.path.abspath(path), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@functools.lru_cache(maxsize=1024)
def _sha256(path: str, *_: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_sha256(folder: Path, *patterns: str) -> str:
    """Hex sha256 over the names and bytes of a folder's files that match any of the glob patterns."""
    files = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    names = (f"{path.relative_to(folder)} {sha256(path)}\n" for path in files)
    return hashlib.sha256("".join(names).encode()).hexdigest()


CHECKSUMS = "checksums.json"
_GUARDED = ("*.safetensors", "config.json", "decoder_config.json", "tokenizer.json", "tokenizer_config.json")


def write_checksums(folder: Path, patterns: Iterable[str] = _GUARDED) -> None:
    """Write ``checksums.json``: the sha256 of a folder's files, by name; of a model, weights, configuration, tokenizer.

    Folders inside it belong to other modules, which may be written later: they are left out.
    """
    sums = {file.name: sha256(file) for pattern in patterns for file in sorted(folder.glob(pattern))}
    with atomic_file(folder / CHECKSUMS) as temporary:
        temporary.write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def verify_checksums(folder: Path, way_out: str) -> None:
    """Compare a folder with its ``checksums.json``; a folder without one is taken as it is.

    safetensors notices a truncated file, but loads a flipped bit without a word; so do configurations and tokenizers.

    Raises:
        DamagedFileError: A file is absent or its bytes differ; the message names it and ends with ``way_out``.
    """
    path = folder / CHECKSUMS
    if not path.is_file():
        return
    try:
        sums = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise DamagedFileError(
            f"{path}: expected a checksum for each file, got no such JSON ({error}). {way_out}"
        ) from error
    for name, expected in sums.items():
        file = folder / name
        found = sha256(file) if file.is_file() else "no file"
        if found != expected:
            raise DamagedFileError(f"{file}: expected sha256 {expected}, got {found}. {way_out}")


def is_whole(folder: Path) -> bool:
    """Whether a folder has its ``checksums.json`` and every file of it, whatever they hold.

    What cleans a cache takes files by their age, and leaves some of a folder, or the folder alone.
    """
    try:
        return all((folder / name).is_file() for name in json.loads((folder / CHECKSUMS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return False


@contextlib.contextmanager
def locked(name: str, timeout: float = -1) -> Iterator[None]:
    """Hold the cache's lock of that name: no other process, or thread, is in such a block meanwhile.

    Args:
        name: Of what is locked; a file of that name in the cache's folder ``locks``.
        timeout: Seconds to wait for another process; -1 waits as long as it takes.

    Raises:
        OutputError: The cache can't hold it.
        filelock.Timeout: Another process holds it.
    """
    locks = cache_path("locks")
    with contextlib.ExitStack() as held:
        with writing(locks):
            make_folder(locks)
            held.enter_context(filelock.FileLock(locks / name, timeout=timeout))
        yield


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path in the target's folder, renamed to ``path`` when the block ends well, removed when it does not.

    Raises:
        OutputError: The folder can't be created or written.
    """
    with _temporary_folder(path) as folder:
        yield folder / path.name
        os.replace(folder / path.name, path)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` when the block ends well; a folder already there is replaced.

    Raises:
        OutputError: The parent can't be created or written.
    """
    with _temporary_folder(path) as folder:
        (folder / path.name).mkdir()
        yield folder / path.name
        if path.exists():
            os.replace(path, folder / "replaced")
        os.replace(folder / path.name, path)


@contextlib.contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    """A scratch folder beside ``path`` (same file system, so that renaming is atomic)."""
    scratch = None
    with writing(path):
        try:
            make_folder(path.parent)
            scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
            yield scratch
        finally:
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)


def make_folder(path: Path) -> None:
    """Create a folder and those above it; one that is there is left as it is.

    Raises:
        OutputError: It can't be created.
    """
    with writing(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # said of places that take no folders, such as /proc
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from error


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say it plainly where the block can't write, whether the system or safetensors noticed.

    Raises:
        OutputError: No room, no permission, or no folder; the message names ``path``.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = _error_number(error)
        if number not in _CANNOT_WRITE:
            raise
        raise OutputError(
            f"Could not write {path}: {os.strerror(number)}. "
            "Choose a folder that exists on a disk with room and that you may write to."
        ) from error


def _error_number(error: OSError | SafetensorError) -> int | None:
    """The system's error number; safetensors has it in its text alone."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None
