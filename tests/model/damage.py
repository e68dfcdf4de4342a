"""Checkpoints that are broken in every way that files get broken, made from a good one by a seed. Nothing of it is stored."""

from __future__ import annotations

import io
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor]
VOCAB = 300


def small_vocabulary(folder: Path) -> Path:
    """A vocabulary of single bytes and a few words, for models with 300 rows."""
    lines = [f"{byte + 1} {bytes([byte])!r} 1" for byte in range(256)] + ["257 'ab' 2", "258 'abcd' 4", "259 '今天' 6"]
    path = folder / "small.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def saved(content: object, legacy: bool = False) -> bytes:
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def flipped(data: bytes, position: int, bit: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


def regions(data: bytes) -> dict[str, range]:
    """Where in a checkpoint the zip's directory, the pickle, a record's header and a large tensor's numbers lie."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records, directory = archive.infolist(), archive.start_dir
    pickled = next(record for record in records if record.filename.endswith("data.pkl"))
    largest = max((record for record in records if "/data/" in record.filename), key=lambda record: record.file_size)
    starts = {name: _content_start(data, record) for name, record in (("pickle", pickled), ("numbers", largest))}
    return {
        "directory": range(directory, len(data)),
        "pickle": range(starts["pickle"], starts["pickle"] + pickled.file_size),
        "header": range(largest.header_offset, starts["numbers"]),
        "numbers": range(starts["numbers"], starts["numbers"] + largest.file_size),
    }


def _content_start(data: bytes, record: zipfile.ZipInfo) -> int:
    name, extra = struct.unpack_from("<HH", data, record.header_offset + 26)
    return record.header_offset + 30 + int(name) + int(extra)


def flips(data: bytes, seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """(region, file with one bit changed there), ``count`` for every region."""
    chance = random.Random(seed)
    for name, region in regions(data).items():
        for _ in range(count):
            yield name, flipped(data, chance.choice(region), chance.randrange(8))


def truncations(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """The file cut at a few places that matter and at ``count`` others."""
    chance = random.Random(seed)
    edges = [0, 1, 4, 30, *(region.start for region in regions(data).values()), len(data) - 22, len(data) - 1]
    for end in (*edges, *(chance.randrange(len(data)) for _ in range(count))):
        yield data[:end]


def rezipped(data: bytes, change: Callable[[zipfile.ZipInfo, bytes], bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """The same records, each changed and with a right checksum, in a new archive."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(target, "w", method) as out:
        for record in archive.infolist():
            out.writestr(record.filename, change(record, archive.read(record)))
    return target.getvalue()


def doubled(data: bytes) -> bytes:
    """An archive that holds its pickle twice."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(target, "w") as out:
        for record in [*archive.infolist(), archive.infolist()[0]]:
            # A name that is there already is a warning of zipfile's; this is how one gets in without.
            out.NameToInfo.pop(record.filename, None)
            out.writestr(record.filename, archive.read(record))
    return target.getvalue()


def directory_says(data: bytes, size: int) -> bytes:
    """The directory declares ``size`` bytes for the first record of numbers."""
    at = data.index(b"PK\x01\x02")
    while b"/data/" not in data[at + 46 : at + 46 + struct.unpack_from("<H", data, at + 28)[0]]:
        at = data.index(b"PK\x01\x02", at + 46)
    return data[: at + 20] + struct.pack("<II", size, size) + data[at + 28 :]


def without_checksums(state: State) -> bytes:
    """As torch.save writes with its checksums turned off: all of them are 0."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        return saved(state)
    finally:
        torch.serialization.set_crc32_options(before)


class _Runs:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.marker,)


def _changed(state: State, key: str, change: Callable[[Tensor], Any]) -> dict[str, Any]:
    return {**state, key: change(state[key].clone())}


def _holding(value: float) -> Callable[[Tensor], Tensor]:
    def put(tensor: Tensor) -> Tensor:
        tensor.view(-1)[7] = value
        return tensor

    return put


def wrong_contents(state: State, marker: str) -> dict[str, tuple[bytes, str]]:
    """Files that are sound and hold something else: name -> (bytes, words of the refusal)."""
    key, table = "blocks.0.att.key.weight", "emb.weight"
    huge = torch.zeros(1).expand(1 << 31, state[table].shape[1])
    return {
        "integers": (saved(_changed(state, key, lambda t: t.to(torch.int8))), f"{key} holds int8"),
        "complex": (saved(_changed(state, key, lambda t: t.to(torch.complex64))), f"{key} holds complex64"),
        "transposed table": (saved(_changed(state, table, lambda t: t.t().contiguous())), "no multiple of 64"),
        "one row too few": (saved(_changed(state, "head.weight", lambda t: t[:-1].clone())), "head.weight has shape"),
        "a scalar": (saved(_changed(state, table, lambda t: t[0, 0].clone())), "two dimensions"),
        "no elements": (saved(_changed(state, key, lambda t: t[:0].clone())), f"{key} has shape 0 x 64, which holds nothing"),
        "empty table": (saved(_changed(state, table, lambda t: t[:0].clone())), "emb.weight has shape 0 x 64, which holds nothing"),
        "numpy's numbers": (saved(_changed(state, key, lambda t: t.tolist())), f"{key} is missing"),
        "meta": (saved(_changed(state, key, lambda t: t.to("meta"))), "not a plain dense tensor"),
        "NaN in a matrix": (saved(_changed(state, key, _holding(float("nan")))), f"{key} holds values that are not numbers"),
        "NaN in the table": (saved(_changed(state, table, _holding(float("nan")))), "emb.weight holds values that are not numbers"),
        "NaN in a vector, half": (
            saved({k: _holding(float("nan"))(t.half()) if k == "ln_out.bias" else t.half() for k, t in state.items()}),
            "ln_out.bias holds values that are not numbers",
        ),
        "a view of 1 TiB": (saved({**state, table: huge, "head.weight": huge}), "declares tensors of"),
        "code": (saved({**state, "extra": _Runs(marker)}), "refused: its pickle asks for"),
        "code, older form": (saved({**state, "extra": _Runs(marker)}, legacy=True), "refused: its pickle asks for"),
        "code alone": (pickle.dumps(_Runs(marker)), "damaged"),
        "nested lists": (saved([[[]]]), "holds a list"),
        "packed": (rezipped(saved(state), lambda record, content: content, zipfile.ZIP_DEFLATED), "packed or encrypted"),
        "the pickle twice": (doubled(saved(state)), "two records of one name"),
        "a record of 4 GiB": (directory_says(saved(state), 0xFFFFFFF0), "declares records of"),
        "half a record": (
            rezipped(saved(state), lambda record, content: content[: len(content) // 2] if record.filename.endswith("data/0") else content),
            "invalid header or archive is corrupted",
        ),
        "a pickle of nothing": (
            rezipped(saved(state), lambda record, content: b"" if record.filename.endswith("data.pkl") else content),
            "invalid header or archive is corrupted",
        ),
        "another zip": (_zip_of_text(), "invalid header or archive is corrupted"),
        "text": (b"version https://example.org\noid sha256:0\nsize 5\n", "invalid header or archive is corrupted"),
        "a web page": (b"<!DOCTYPE html><html>not found</html>", "invalid header or archive is corrupted"),
        "zeros": (bytes(100_000), "invalid header or archive is corrupted"),
        "empty": (b"", "invalid header or archive is corrupted"),
        "safetensors": (struct.pack("<Q", 20) + b'{"__metadata__":{}}  ' + bytes(64), "a .safetensors file"),
        "gguf": (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "a .gguf file"),
        "safetensors of 2^63": (struct.pack("<Q", 2**63) + b'{"a":1}', "invalid header or archive is corrupted"),
    }


def _zip_of_text() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("hello.txt", "hello")
    return target.getvalue()
