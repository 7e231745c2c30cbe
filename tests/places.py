"""Places where nothing can be written: a full disk, and folders of somebody else."""

import contextlib
import os
import resource


@contextlib.contextmanager
def full(folder, size=200):
    """A limit on the size of files stands in for a disk without room."""
    folder.mkdir(exist_ok=True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def read_only(folder):
    """A folder without write permission; root, whom permissions don't bind, is somebody else meanwhile."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)
