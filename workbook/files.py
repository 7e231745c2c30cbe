"""Paths of the project's files, and writing them so that nothing half-written is ever seen."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock
import platformdirs
from safetensors import SafetensorError

from .errors import MissingDataError, OutputError

LOCK = ".workbook.lock"
"""Name of the file that is locked while one process has a folder to itself."""

_SCRATCH = ".workbook-"
_INSIDE = "files"
"""A hidden folder, which begins with the first name, holds a lock as long as its process lives, and what is written in
a folder of the second."""

_CANNOT_WRITE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),  # full, over the quota, over the limit of a file
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.EBUSY, errno.ENAMETOOLONG),
}

ROOT = Path(__file__).resolve().parents[1]
"""The project's folder: the parent of the package."""


def data_path(*parts: str) -> Path:
    """Path of a file under the project's ``data/`` folder.

    Args:
        *parts: Folders and file name.

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
    """Path under the cache (``WORKBOOK_CACHE``, else the user's cache folder); nothing is created.

    Args:
        *parts: Folders and file name.

    Raises:
        OutputError: Its name is too long, or not UTF-8 here; or the user has no home folder.
    """
    try:
        root = Path(os.environ.get("WORKBOOK_CACHE") or platformdirs.user_cache_dir("workbook", appauthor=False))
    except RuntimeError as error:
        raise OutputError(
            "Expected a home folder for the cache, got none: HOME is not set, and the user is not known here. "
            "Name a folder for the cache in WORKBOOK_CACHE."
        ) from error
    _check_name(root)
    return root.joinpath(*parts)


@contextlib.contextmanager
def locked(name: str, timeout: float = -1) -> Iterator[None]:
    """Hold the cache's lock of that name: no other process or thread is in such a block meanwhile.

    Args:
        name: Name of the lock: a file in the cache's folder ``locks``.
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
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder, by whatever path it is named: no other process is in such a block for it meanwhile.

    Args:
        folder: The folder, created if absent.

    Raises:
        OutputError: The folder can't be written.
        filelock.Timeout: Another process has it.
    """
    with contextlib.ExitStack() as held:
        with writing(folder):
            make_folder(folder)
            held.enter_context(filelock.FileLock(folder / LOCK, timeout=0))
        # Removed while it is held: filelock does not count a lock on a file that is gone, and tries again.
        held.callback((folder / LOCK).unlink, missing_ok=True)
        yield


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path in the target's folder, renamed to ``path`` if the block succeeds, removed if it fails.

    Raises:
        OutputError: The folder can't be created or written.
    """
    with writing(path), scratch_folder(path.parent) as folder:
        yield folder / path.name
        os.replace(folder / path.name, path)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` if the block succeeds; an existing folder is replaced.

    Raises:
        OutputError: The parent can't be created or written.
    """
    with writing(path), scratch_folder(path.parent) as folder:
        (folder / path.name).mkdir()
        yield folder / path.name
        if path.exists():
            os.replace(path, Path(tempfile.mkdtemp(dir=folder), path.name))
        os.replace(folder / path.name, path)


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A hidden folder inside another (same file system, so that renaming is atomic), removed when the block ends.

    Those that killed processes left there are removed first.

    Args:
        parent: The other folder, created if absent.

    Raises:
        OutputError: It can't be written.
    """
    with contextlib.ExitStack() as held:
        with writing(parent):
            make_folder(parent)
            remove_scratch(parent)
            scratch = None
            while scratch is None:
                made = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=parent))
                held.callback(_remove, made)
                # Another process takes it for a leftover if it comes before it is locked: then one more is made.
                with contextlib.suppress(FileNotFoundError, FileExistsError):
                    held.enter_context(filelock.FileLock(made / LOCK))
                    (made / _INSIDE).mkdir()
                    scratch = made
        yield scratch / _INSIDE


def remove_scratch(folder: Path) -> None:
    """Remove the hidden folders that killed processes left in a folder; those in use stay.

    Args:
        folder: The folder in which :func:`scratch_folder` made them.
    """
    for scratch in folder.glob(f"{_SCRATCH}????????"):
        with contextlib.suppress(filelock.Timeout, OSError):  # what can't be removed is in nobody's way
            if (scratch / LOCK).is_file():
                with filelock.FileLock(scratch / LOCK, timeout=0):
                    _remove(scratch)
            else:
                scratch.rmdir()  # if it is empty: killed just before it was locked, or after it was removed


def _remove(scratch: Path) -> None:
    """Remove a hidden folder, its lock last: without one it is not known as ours."""
    shutil.rmtree(scratch / _INSIDE, ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)


def is_empty(folder: Path) -> bool:
    """True if a folder holds nothing but the lock and the hidden folders of processes that write into it."""
    return all(path.name == LOCK or path.name.startswith(_SCRATCH) for path in folder.iterdir())


def refuse_filled(folder: Path) -> None:
    """Refuse a place for a new folder where something stands; see :func:`is_empty`.

    Raises:
        OutputError: A file, or a folder that holds something.
    """
    if folder.exists() and not (folder.is_dir() and is_empty(folder)):
        raise OutputError(f"Expected an absent or empty folder, got {folder}. Choose another with --output.")


def make_folder(path: Path) -> None:
    """Create a folder and its parents; an existing one is left as it is.

    Raises:
        OutputError: It can't be created, or its name is not UTF-8 here, which libraries that write there need.
    """
    _check_name(path)
    with writing(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # said of places that take no folders, such as /proc
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from error


def _check_name(path: Path) -> None:
    """Refuse a name that the system, or a library, would not take."""
    try:
        os.path.abspath(path).encode()
    except UnicodeEncodeError as error:
        raise OutputError(
            f"Expected names of folders that UTF-8 can hold, got {str(path)!r}: Python reads names as "
            f"{sys.getfilesystemencoding()} here. Set PYTHONUTF8=1, or choose a folder with a plain name."
        ) from error
    with writing(path):
        path.exists()


def check_room(folder: Path, needed: int, what: str, hint: str) -> None:
    """Refuse what a disk has no room for.

    Args:
        folder: Where it will be written; it need not exist yet.
        needed: Bytes.
        what: What takes them, for the message.
        hint: The way out, a sentence.

    Raises:
        OutputError: Too little room; the message has both numbers.
    """
    with writing(folder):
        there = next(one for one in (folder, *folder.absolute().parents) if one.is_dir())
        free = shutil.disk_usage(there).free
    if needed > free:
        raise OutputError(
            f"Expected {needed / 1e9:,.1f} GB of free disk in {folder} for {what}, got {free / 1e9:,.1f} GB. {hint}"
        )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn any failure to write in the block, of the system, safetensors or torch, into an OutputError.

    Args:
        path: Where it writes, for the message.

    Raises:
        OutputError: No room, no permission, or no folder; the message names ``path``.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise OutputError(
            f"Could not write {path}: {reason}. Choose a folder that exists on a disk with room and that you may "
            "write to."
        ) from error


def _reason(error: Exception) -> str | None:
    """The reason why something can't be written, if the error is about that.

    safetensors gives the system's error number in its text alone; torch.save notices only that a file did not grow.
    """
    if isinstance(error, RuntimeError):
        return "No room for all of it" if re.search("unexpected pos|PytorchStreamWriter", str(error)) else None
    if isinstance(error, OSError):
        number = error.errno
    else:
        found = re.search(r"\(os error (\d+)\)", str(error))
        number = int(found[1]) if found else None
    return os.strerror(number) if number in _CANNOT_WRITE else None
