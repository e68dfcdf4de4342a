"""Reading a .pth file: its tensors and their ModelSpec, without running any code that may lie in it."""

from __future__ import annotations

import logging
import pickle
import re
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from albatross_plugin.errors import CONVERTED, DAMAGED, NO_MEMORY, CheckpointError
from albatross_plugin.model.archive import check_directory
from albatross_plugin.model.spec import ModelSpec, read_spec

logger = logging.getLogger(__name__)

# Before 2.6, weights_only could be made to run code (CVE-2025-32434).
MINIMUM_TORCH = (2, 6)
DAMAGED_FILE = f"damaged, incomplete or not a PyTorch file ({DAMAGED})"
_CONVERTED = ("_strategy", "_version", "_rescale_layer")


def open_checkpoint(path: str | Path) -> tuple[ModelSpec, dict[str, Tensor]]:
    """The sizes of the model in ``path`` and its tensors, which are still mapped from the file where possible.

    Nothing large is read yet. Raises CheckpointError, within seconds, if the file is not an RWKV-7 model.
    """
    path = Path(path)
    check_torch(torch.__version__)
    content, records = _read(path)
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path.name} holds a {type(content).__name__}, not a dict of tensors")
    for key in _CONVERTED:
        if key in content:
            raise CheckpointError(
                f"{path.name} was converted for one strategy (it has the key {key}); use the original file or {CONVERTED}"
            )
    tensors = {}
    ignored = []
    for key, value in content.items():
        if isinstance(key, str) and isinstance(value, Tensor):
            if value.layout is not torch.strided or value.is_quantized or value.is_meta:
                raise CheckpointError(f"{path.name}: {key} is not a plain dense tensor")
            tensors[key] = value
        else:
            ignored.append(key)
    spec = read_spec(path.name, tensors)
    _check_size(path, tensors, records)
    if ignored:
        some = ", ".join(repr(key)[:100] for key in ignored[:10])
        logger.warning("%s: ignored %d entries that are not tensors: %s", path.name, len(ignored), some)
    return spec, tensors


def _check_size(path: Path, tensors: Mapping[str, Tensor], records: Counter[int] | None) -> None:
    """Whether the tensors are made of what the file holds.

    A few bytes can be a view as large as memory, and loading it would make every byte of it; two tensors may share one record. A
    tensor that is larger than its record would go on into the next one.
    """
    declared, there = sum(tensor.numel() * tensor.itemsize for tensor in tensors.values()), path.stat().st_size
    if declared > 2 * there:
        raise CheckpointError(f"{path.name} declares tensors of {declared} bytes, but has {there} bytes")
    if records is not None:
        storages = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors.values())}
        missing = Counter(storages.values()) - records
        if missing:
            raise CheckpointError(f"{path.name} is {DAMAGED_FILE}: no record has the {min(missing)} bytes that a tensor needs")


def check_torch(version: str) -> None:
    """Refuse a torch whose ``weights_only`` is not safe."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < MINIMUM_TORCH:
        needed = ".".join(map(str, MINIMUM_TORCH))
        raise CheckpointError(f"PyTorch {version} cannot read a .pth file safely (weights_only); install torch {needed} or newer")


def _read(path: Path) -> tuple[object, Counter[int] | None]:
    """torch.load that executes nothing, and the sizes of a zip's records; every way of failing becomes a CheckpointError in words."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            # Opening a pipe would wait for a writer.
            raise CheckpointError(f"{path.name} is not a regular file")
        with path.open("rb") as file:
            # Files from before torch 1.6 are no zip archives, and mmap raises for them.
            start = file.read(9)
        _check_kind(path, start)
        zipped = start.startswith(b"PK\x03\x04")
        records = check_directory(path) if zipped else None
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped), records
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(_unpickling_text(path.name, str(error))) from error
    except FileNotFoundError as error:
        raise CheckpointError(f"model file not found: {path}") from error
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from error
    except MemoryError as error:
        raise CheckpointError(f"{NO_MEMORY} to read {path.name}") from error
    except Exception as error:
        # Damage shows up as anything from RuntimeError to EOFError, UnicodeDecodeError or KeyError.
        first_line = (str(error) or type(error).__name__).splitlines()[0][:200]
        if "weights_only" in first_line:
            # Advice to read the file unsafely.
            first_line = type(error).__name__
        raise CheckpointError(f"{path.name} is {DAMAGED_FILE}: {first_line}") from error


def _check_kind(path: Path, start: bytes) -> None:
    """Say what a file of another kind is. ``start``: its first 9 bytes."""
    kind = None
    if start.startswith(b"GGUF"):
        kind = "gguf"
    elif start.endswith(b"{") and int.from_bytes(start[:8], "little") < path.stat().st_size:
        kind = "safetensors"
    if kind is not None:
        raise CheckpointError(f"{path.name} is a .{kind} file under another name; this engine reads .pth files")


def _unpickling_text(name: str, message: str) -> str:
    forbidden = re.search(r"GLOBAL (\S+)", message) or re.search(r"(?:unsafe|Unsupported) class (\S+)", message)
    if forbidden and "ersistent" not in message:
        return f"{name} is refused: its pickle asks for {forbidden[1]}, which is not data, and nothing in it was run"
    return f"{name} is {DAMAGED_FILE}"
