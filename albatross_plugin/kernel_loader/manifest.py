"""Prebuilt kernel files: reading their manifest, choosing one, checking it. Whatever does not fit keeps its reason."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from albatross_plugin.kernel_loader.context import FIELDS, KernelContext, number_of

MANIFEST = "manifest.json"
_ARCH = re.compile(r"(sm|compute)[0-9]{2,3}", re.ASCII)


@dataclass(frozen=True)
class Entry:
    """One row: what the file was built for, where it lies under the manifest's folder, and its SHA-256 in hexadecimal."""

    context: KernelContext
    path: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.path} ({self.context.arch})"


@dataclass(frozen=True)
class Choice:
    """The entry that fits best, or None, and why each of the others was not taken."""

    entry: Entry | None
    rejected: tuple[str, ...]


def read_manifest(root: Path) -> tuple[list[Entry], list[str]]:
    """Entries of ``root``/manifest.json, and a reason for each that cannot be used. Never raises for what is in the file."""
    file = root / MANIFEST
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return [], [f"{MANIFEST} is not there"]
    except (OSError, ValueError, RecursionError) as error:
        return [], [f"{MANIFEST} cannot be read: {error}"]
    rows = content.get("kernels") if isinstance(content, dict) else None
    if not isinstance(rows, list):
        return [], [f'{MANIFEST} has no list "kernels"']
    entries, rejected = [], []
    for number, row in enumerate(rows, 1):
        found = _entry(row)
        if isinstance(found, Entry):
            entries.append(found)
        else:
            rejected.append(f"entry {number} of {MANIFEST} {found}")
    return entries, rejected


def _entry(row: Any) -> Entry | str:
    """An entry, or what is wrong with the row."""
    if not isinstance(row, dict):
        return "is no object"
    for key in (*FIELDS, "path", "sha256"):
        if not isinstance(row.get(key), str) or not row[key]:
            return f"has no text under {key!r}"
    if not _ARCH.fullmatch(row["arch"]):
        return f"has the unknown arch {row['arch'][:40]!r}"
    if not row["path"].isprintable():
        # Such a name cannot be given to the system, and must not be shown as it is either.
        return f"has a path that is none: {row['path'][:80]!a}"
    path = PurePosixPath(row["path"])
    if path.is_absolute() or ".." in path.parts or "\\" in row["path"] or ":" in row["path"]:
        return f"points out of its folder: {row['path']}"
    return Entry(KernelContext(**{key: row[key] for key in FIELDS}), row["path"], row["sha256"].lower())


def choose(context: KernelContext, entries: Iterable[Entry], forced: str | None = None) -> Choice:
    """The entry whose six fields are the context's; else the newest PTX (``computeNN``) that the card can translate.

    ``forced`` (``smNN`` or ``computeNN``) takes the place of both rules for ``arch``. Pure: the result depends on the arguments only.
    """
    fits: list[tuple[int, Entry]] = []
    rejected: list[str] = []
    for entry in entries:
        reason = _mismatch(context, entry.context, forced)
        if reason is None:
            exact = entry.context.arch == (forced or context.arch)
            fits.append((10_000 if exact else number_of(entry.context.arch), entry))
        else:
            rejected.append(f"{entry}: {reason}")
    if not fits:
        return Choice(None, tuple(rejected))
    best = max(fits, key=lambda item: item[0])[1]
    rejected += [f"{entry}: {best} fits better" for _, entry in fits if entry is not best]
    return Choice(best, tuple(rejected))


def _mismatch(here: KernelContext, there: KernelContext, forced: str | None) -> str | None:
    """Why a file built for ``there`` is not for ``here``, or None."""
    different = [
        f"{field} {getattr(there, field)}, here {getattr(here, field)}"
        for field in FIELDS
        if field != "arch" and getattr(there, field) != getattr(here, field)
    ]
    if forced is not None:
        if there.arch != forced:
            different.append(f"arch {there.arch}, but ALBATROSS_KERNEL_ARCH asks for {forced}")
    elif there.arch.startswith("compute"):
        if number_of(there.arch) > number_of(here.arch):
            different.append(f"arch {there.arch} is newer than this card, {here.arch}")
    elif there.arch != here.arch:
        different.append(f"arch {there.arch}, here {here.arch}")
    return "; ".join(different) or None


def check_file(root: Path, entry: Entry) -> str | None:
    """Why the file of an entry must not be loaded, or None: it must be there, inside ``root``, with the SHA-256 of the manifest."""
    file = root / entry.path
    try:
        if not file.resolve().is_relative_to(root.resolve()):
            return f"{entry}: points out of its folder"
        found = sha256_of(file)
    except (OSError, ValueError) as error:
        return f"{entry}: cannot be read: {getattr(error, 'strerror', None) or error}"
    if found != entry.sha256:
        return f"{entry}: its SHA-256 is {found[:12]}..., the manifest says {entry.sha256[:12]}..."
    return None


def find_prebuilt(context: KernelContext, root: Path, forced: str | None = None) -> Choice:
    """The best entry of ``root``'s manifest whose file passes its check."""
    entries, rejected = read_manifest(root)
    while True:
        choice = choose(context, entries, forced)
        problem = None if choice.entry is None else check_file(root, choice.entry)
        if problem is None:
            return Choice(choice.entry, (*rejected, *choice.rejected))
        rejected.append(problem)
        entries = [entry for entry in entries if entry is not choice.entry]


def sha256_of(file: Path) -> str:
    """Of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def add_entries(root: Path, added: Sequence[Entry]) -> None:
    """Write ``added`` into ``root``'s manifest, in place of rows for the same six fields. Rows that cannot be read are dropped."""
    entries, _ = read_manifest(root)
    kept = {entry.context: entry for entry in (*entries, *added)}
    rows = [{**asdict(entry.context), "path": entry.path, "sha256": entry.sha256} for entry in kept.values()]
    rows.sort(key=lambda row: [row[key] for key in FIELDS])
    handle, name = tempfile.mkstemp(dir=root, prefix=MANIFEST)
    with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(json.dumps({"kernels": rows}, indent=2) + "\n")
    Path(name).chmod(0o644)
    Path(name).replace(root / MANIFEST)
