"""Running notebooks unattended: papermill underneath, resumed by content, nothing half-written.

A run folder holds the executed notebooks, their results (figures, claims, manifests) and ``manifest.json``. A notebook
is not run again while its source, its parameters, a backbone's folder, the library with its data, and every installed
version are the same, and its executed copy and all its results are intact.

A notebook with a cell tagged ``sums-up`` reads the verdicts of the others: it waits for them, and is run again when
these change.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import platform
import queue
import site
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Self

import filelock

from .. import __version__
from ..checksums import folder_sha256, sha256
from ..errors import DamagedFileError, InvalidValueError, MissingDataError, OutputError, UnknownNameError
from ..figures import ENDINGS
from ..files import ROOT, alone, atomic_file, remove_scratch, writing
from ..papers import claims, ledger
from . import execution, results

PASSED = "passed"
FAILED = "failed"
UNCHANGED = "unchanged"
_UNFINISHED = "unfinished"
_MODEL_FILES = [f"**/*.{ending}" for ending in ("json", "safetensors", "gguf", "txt", "model", "jinja")]


class Outcome(NamedTuple):
    """The outcome of one notebook.

    Attributes:
        name: The notebook, such as ``01_attention``.
        status: ``passed``, ``failed``, or ``unchanged`` if an earlier run's copy is still valid.
        seconds: Time it took, of the earlier run if unchanged.
        problem: Cell and error of a failure, otherwise empty.
    """

    name: str
    status: str
    seconds: float
    problem: str = ""


def find(wanted: Sequence[str], folder: Path | None = None) -> list[Path]:
    """The notebooks of those numbers or names, in their order; all if none is named.

    Args:
        wanted: Numbers (``01``, ``1``), names (``01_attention``) or file names.
        folder: Folder of the notebooks; None for the project's ``notebooks``.

    Raises:
        MissingDataError: The folder holds no notebooks.
        InvalidValueError: Two of them have the same number, which identifies their results.
        UnknownNameError: No such notebook; the message lists all.
    """
    folder = Path(folder or ROOT / "notebooks").resolve()
    notebooks = {path.stem: path for path in sorted(folder.glob("[0-9]*.ipynb"))}
    if not notebooks:
        raise MissingDataError(
            f"Expected notebooks named NN_name.ipynb in {folder}, found none. Run from a checkout of the project, "
            "or name their folder with --notebooks."
        )
    numbers: dict[str, str] = {}
    for stem in notebooks:
        number = stem.partition("_")[0]
        if other := numbers.get(number):
            hint = "Move the copy to another folder, or give it another number."
            raise InvalidValueError(f"notebooks in {folder}", "one of each number", sorted([other, stem]), hint)
        numbers[number] = stem
    chosen = {}
    for name in wanted:
        stem = Path(name).name.removesuffix(".ipynb")
        matches = [key for key in notebooks if stem == key or key.split("_")[0] == stem.zfill(2)]
        if not matches:
            raise UnknownNameError("notebook", name, notebooks)
        chosen.update((key, notebooks[key]) for key in matches)
    return [path for stem, path in notebooks.items() if not wanted or stem in chosen]


class Session:
    """One run into one folder, which it locks.

    Args:
        folder: The run folder, created if absent.
        parameters: Parameters for every notebook, besides ``output_dir``, which is the folder; ``rerun`` goes only to
            those that declare it.
        cell_timeout: Seconds that a cell may take before its notebook fails; None for no limit.
        told: Called as a code cell begins, by the thread of its notebook, with the notebook's name, the number of the
            cell (from 1) and the number of all.

    Raises:
        OutputError: On entering: the folder can't be written, another run holds it, or it holds a report that is from
            no run.
        DamagedFileError: On entering: the folder's manifest can't be read.
        InvalidValueError, UnknownNameError, MissingDataError: On entering: the project's claims can't be read, so that
            no notebook could judge one.
    """

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, Any],
        cell_timeout: int | None = None,
        told: Callable[[str, int, int], None] | None = None,
    ):
        self.folder = Path(folder).expanduser().resolve()
        self.parameters = dict(parameters)
        self.cell_timeout = cell_timeout
        self.told = told
        self._recording = threading.Lock()
        self._surroundings = _surroundings()

    def __enter__(self) -> Self:
        claims.load()  # said here, not by every notebook after minutes of work
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(alone(self.folder))
            except filelock.Timeout as error:
                raise OutputError(
                    f"Another run is writing to {self.folder}. Wait for it to end, or choose another folder with "
                    "--output."
                ) from error
            for place in (".", "figures", "manifests"):
                remove_scratch(self.folder / place)
            manifest = read_manifest(self.folder)
            if not manifest:
                made = ["index.html", "ledger.json", "ledger.csv"]
                made += [f"figures/{ledger.FIGURE}.{ending}" for ending in ENDINGS]
                results.refuse_foreign(self.folder / name for name in made)
            self._entries = manifest.get("notebooks", {})
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def run(self, sources: Sequence[Path], jobs: int = 1) -> Iterator[Outcome]:
        """Run notebooks and yield outcomes in the order in which they end; with several jobs the last start first.

        Args:
            sources: The notebooks; they are only read.
            jobs: Number of notebooks at a time; they share the cores.

        Raises:
            OutputError: A notebook is in the run folder or below it, where its own copy would replace it.
            DamagedFileError, OutputError: As `execute`; notebooks that run at the same time end with this process.
        """
        for source in sources:
            if source.resolve().is_relative_to(self.folder):
                raise OutputError(
                    f"The run folder {self.folder} holds the notebook {source}, which a run only reads. "
                    "Choose another folder with --output."
                )
        self._write_manifest()
        last = [source for source in sources if _sums_up(source)]
        chosen = "OMP_NUM_THREADS" in os.environ
        for group in ([source for source in sources if source not in last], last):
            together = min(jobs, len(group))
            if together > 1:  # at scale cpu the later ones take longer: begun first, none is left to run alone
                group = group[::-1]
            if together and not chosen:  # kernels begin with this; more threads than cores get in each other's way
                os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // together))
            yield from self._together(group, jobs)

    def _together(self, sources: Sequence[Path], jobs: int) -> Iterator[Outcome]:
        waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
        ended: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()
        for source in sources:
            waiting.put(source)

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while source := waiting.get_nowait():
                    try:
                        ended.put(self.execute(source))
                    except BaseException as error:
                        ended.put(error)

        # Daemons: nobody waits for them when this process is stopped, and their kernels end with it.
        for _ in range(min(jobs, len(sources))):
            threading.Thread(target=work, daemon=True).start()
        for _ in sources:
            outcome = ended.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome

    def execute(self, source: Path) -> Outcome:
        """Run one notebook, unless its earlier results are still valid; a failure is an outcome, not an exception.

        The results of an earlier run are removed first; its copy, if someone has edited it since, is renamed.

        Args:
            source: The notebook; it is only read.

        Raises:
            DamagedFileError: The folder's claims file holds something else.
            OutputError: The run folder can't be written, or holds a notebook of that name that is from no run.
        """
        name, target, key = source.stem, self.folder / source.name, self._key(source)
        copies = (target, target.with_suffix(".html"))
        if name not in self._entries:
            results.refuse_foreign(copies)
        known = self._entries.get(name, {})
        same = known.get("status") == PASSED and known["key"] == key
        if same and known.get("left") == self._left(source):
            return Outcome(name, UNCHANGED, known["seconds"])
        begun = {"key": key, "parameters": self.parameters, "library": self._surroundings["library"]}
        _keep_edited(target, known.get("left", {}).get(target.name))
        self._record(name, status=_UNFINISHED, **begun)
        results.clear(self.folder, name)
        with writing(target):
            for copy in copies:
                copy.unlink(missing_ok=True)
        began = time.monotonic()
        parameters = self.parameters | {"output_dir": str(self.folder)}
        problem = execution.execute(source, target, parameters, self.cell_timeout, self.told)
        outcome = Outcome(name, FAILED if problem else PASSED, round(time.monotonic() - began, 1), problem)
        self._record(
            name,
            status=outcome.status,
            **begun,
            seconds=outcome.seconds,
            problem=problem,
            ended=datetime.now(UTC).isoformat(timespec="seconds"),
            left=self._left(source),
        )
        return outcome

    def _key(self, source: Path) -> str:
        content = [sha256(source), self.parameters, self._surroundings]
        if backbone := self.parameters.get("backbone"):
            # A notebook runs in its own folder: that is where a relative path starts. No folder, no files.
            content.append(folder_sha256(source.parent / Path(backbone).expanduser(), *_MODEL_FILES))
        if _sums_up(source):
            content.append(claims.entries(self.folder / "claims.json", other_than=source.stem))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _left(self, source: Path) -> dict[str, str]:
        """Checksums of the executed copy and of its results."""
        copy = self.folder / source.name
        return results.checksums(self.folder, source.stem) | ({copy.name: sha256(copy)} if copy.exists() else {})

    def _record(self, name: str, **entry: Any) -> None:
        with self._recording:
            self._entries[name] = entry
            self._write_manifest()

    def _write_manifest(self) -> None:
        manifest = {
            "workbook": __version__,
            "platform": platform.platform(),
            **self._surroundings,
            "notebooks": dict(sorted(self._entries.items())),
        }
        with atomic_file(self.folder / "manifest.json") as temporary:
            temporary.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder; empty if there is none yet.

    Raises:
        DamagedFileError: It can't be read.
    """
    path = Path(folder) / "manifest.json"
    if not path.exists():
        return {}
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        whole = {"workbook", "platform", "library", "python", "versions", "notebooks"} <= manifest.keys()
        whole &= all({"status", "key", "parameters"} <= entry.keys() for entry in manifest["notebooks"].values())
    except (ValueError, KeyError, AttributeError):
        whole = False
    if not whole:
        raise DamagedFileError(
            f"Expected a run's manifest in {path}, found something else. Delete it to run everything again."
        )
    return manifest


def _keep_edited(copy: Path, left: str | None) -> None:
    """Give an executed notebook that someone has edited since, by its checksum then, another name."""
    if left is None or not copy.is_file() or sha256(copy) == left:
        return
    endings = itertools.chain([""], map(str, itertools.count(2)))
    names = (copy.with_name(f"{copy.stem}.edited{ending}.ipynb") for ending in endings)
    with writing(copy):
        os.replace(copy, next(name for name in names if not name.exists()))


def _surroundings() -> dict[str, Any]:
    """Everything besides the notebook that a result depends on: library, data, interpreter, installed versions."""
    # What is installed, not what is on sys.path: setuptools, once imported, puts the copies that it carries there.
    folders = [*([site.getusersitepackages()] if site.ENABLE_USER_SITE else []), *site.getsitepackages()]
    versions: dict[str, str] = {}
    for distribution in metadata.distributions(path=folders):  # in the order in which they are imported
        versions.setdefault(distribution.name, distribution.version)
    return {
        "library": folder_sha256(ROOT, "workbook/**/*.py", "data/**/*"),
        "python": platform.python_version(),
        "versions": dict(sorted(versions.items(), key=lambda item: item[0].lower())),
    }


def _sums_up(source: Path) -> bool:
    try:
        cells = execution.read_notebook(source).cells
    except DamagedFileError:
        return False  # running it will say what it is instead
    return any("sums-up" in cell.metadata.get("tags", []) for cell in cells)
