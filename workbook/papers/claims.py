"""Files of claims: ``data/claims.json``, a list of `Claim`, and a run's ``claims.json``, a list of `Verdict`."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import DamagedFileError, InvalidValueError, MissingDataError, UnknownNameError, WorkbookError
from ..files import atomic_file, data_path, locked
from .verdicts import Claim, Verdict


def read_claims(path: Path | None = None) -> dict[str, Claim | WorkbookError]:
    """All claims by id, in the order of the file; for one that can't be used, the error that names it.

    Args:
        path: The file; None for ``data/claims.json``.

    Raises:
        DamagedFileError: The file is not a JSON list.
        MissingDataError: The file is absent.
    """
    path = path or data_path("claims.json")
    found: dict[str, Claim | WorkbookError] = {}
    for number, entry in enumerate(_read_list(path)):
        name = str(entry.get("id", f"number {number}")) if isinstance(entry, dict) else f"number {number}"
        where = f"claim {name!r} in {path.name}"
        if name in found:
            found[name] = InvalidValueError(where, "an id used once", name)
            continue
        try:
            found[name] = Claim.model_validate(entry)
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}".lstrip(": ") for e in error.errors()]
            found[name] = InvalidValueError(where, "the fields of a Claim", entry, "; ".join(problems))
    return found


def load(path: Path | None = None) -> dict[str, Claim]:
    """The claims that can be used, by id, in the order of the file; a warning names each of the others.

    Args:
        path: The file; None for ``data/claims.json``.

    Raises:
        DamagedFileError, MissingDataError: As `read_claims`.
    """
    claims = read_claims(path)
    for error in claims.values():
        if not isinstance(error, Claim):
            warnings.warn(str(error), stacklevel=2)
    return {name: claim for name, claim in claims.items() if isinstance(claim, Claim)}


def get(claim_id: str) -> Claim:
    """The claim of that id.

    Raises:
        UnknownNameError: No such claim; the message lists all.
        InvalidValueError: It is there, but can't be used.
    """
    claims = read_claims()
    if claim_id not in claims:
        raise UnknownNameError("claim", claim_id, claims)
    if not isinstance(claim := claims[claim_id], Claim):
        raise claim
    return claim


def write(verdicts: Iterable[Verdict], path: Path) -> None:
    """Add verdicts to a run's claims file; an earlier one of the same notebook on the same claim is replaced.

    Several notebooks may write at the same time.

    Args:
        verdicts: The verdicts.
        path: The claims file.

    Raises:
        DamagedFileError: The file is there and is not a JSON list.
        OutputError: The file can't be written.
    """
    with _alone(path):
        merged = {_key(entry): entry for entry in entries(path)}
        merged |= {(verdict.id, verdict.notebook): verdict.model_dump(mode="json") for verdict in verdicts}
        _replace([merged[key] for key in sorted(merged)], path)


def drop(notebook: str, path: Path) -> None:
    """Remove a notebook's verdicts from a run's claims file, if there are any.

    Args:
        notebook: Name of the notebook.
        path: The claims file.

    Raises:
        DamagedFileError: The file is there and is not a JSON list.
        OutputError: The file can't be written.
    """
    if not Path(path).exists():
        return
    with _alone(path):
        kept = entries(path, other_than=notebook)
        if kept != entries(path):
            _replace(kept, path)


def read(path: Path) -> tuple[list[Verdict], dict[str, str]]:
    """The verdicts in a run's claims file, each checked against its own numbers and today's rule.

    Returns:
        The verdicts that can be used, none if there is no file yet; and by the claim's id what is wrong with others.

    Raises:
        DamagedFileError: The file is not a JSON list.
    """
    found, problems = [], {}
    for entry in entries(path):
        name, notebook = _key(entry)
        again = f"Run notebook {notebook or 'that wrote it'} again."
        try:
            verdict = Verdict.model_validate(entry)
        except (ValidationError, WorkbookError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            problems[name] = f"{path.name}: expected a verdict on claim {name!r}, got {reason}. {again}"
            continue
        today = read_claims().get(name)
        if today is None:
            problems[name] = f"{path.name}: a verdict on {name!r}, which is no claim. {again}"
        elif not isinstance(today, Claim):
            problems[name] = str(today)
        elif today.rule != verdict.claim.rule:
            problems[name] = f"{path.name}: a verdict on claim {name!r} by an earlier rule. {again}"
        else:
            found.append(verdict)
    return found, problems


def entries(path: Path, notebook: str | None = None, other_than: str | None = None) -> list[Any]:
    """The entries of a run's claims file as plain data, unchecked; none if there is no file yet.

    Args:
        path: The claims file.
        notebook: Only those of this notebook.
        other_than: Only those of other notebooks than this.

    Raises:
        DamagedFileError: The file is not a JSON list.
    """
    found = _read_list(Path(path)) if Path(path).exists() else []
    return [e for e in found if notebook in (None, _key(e)[1]) and (other_than is None or _key(e)[1] != other_than)]


def _key(entry: Any) -> tuple[str, str]:
    """Id of the claim and name of the notebook of an entry, whatever else is wrong with it, or of an earlier form."""
    entry = entry if isinstance(entry, dict) else {}
    claim = entry.get("claim")
    name = claim.get("id") if isinstance(claim, dict) else entry.get("id")
    return str(name or ""), str(entry.get("notebook") or "")


def _alone(path: Path) -> AbstractContextManager[None]:
    """Lock a claims file against other processes, since notebooks that run at the same time write to it too."""
    return locked(f"claims-{hashlib.sha256(os.fsencode(Path(path).resolve())).hexdigest()[:24]}")


def _replace(kept: list[Any], path: Path) -> None:
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_list(path: Path) -> list:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise MissingDataError(f"Expected claims in {path}, found no file. Name another.") from error
    except ValueError as error:
        raise DamagedFileError(f"Expected JSON in {path}: {error}. Restore it, or delete it and run again.") from error
    if not isinstance(entries, list):
        raise DamagedFileError(f"Expected a JSON list in {path}, found {type(entries).__name__}.")
    return entries
