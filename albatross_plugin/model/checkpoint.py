"""Reading a .pth file: its tensors and their ModelSpec, without running any code that may lie in it."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from albatross_plugin.errors import CheckpointError
from albatross_plugin.model.spec import ModelSpec, read_spec

logger = logging.getLogger(__name__)

# Before 2.6, weights_only could be made to run code (CVE-2025-32434).
MINIMUM_TORCH = (2, 6)
# Desktop clients look for these words and show a translated hint.
DAMAGED = "invalid header or archive is corrupted"
_CONVERTED = ("_strategy", "_version", "_rescale_layer")


def open_checkpoint(path: str | Path) -> tuple[ModelSpec, dict[str, Tensor]]:
    """The sizes of the model in ``path`` and its tensors, which are still mapped from the file where possible.

    Nothing large is read yet. Raises CheckpointError, within seconds, if the file is not an RWKV-7 model.
    """
    path = Path(path)
    check_torch(torch.__version__)
    content = _read(path)
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path.name} holds a {type(content).__name__}, not a dict of tensors")
    for key in _CONVERTED:
        if key in content:
            raise CheckpointError(
                f"{path.name} was converted for one strategy (it has the key {key}); use the original file or re-convert the model"
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
    if ignored:
        logger.warning("%s: ignored entries that are not tensors: %s", path.name, ", ".join(map(repr, ignored)))
    return spec, tensors


def check_torch(version: str) -> None:
    """Refuse a torch whose ``weights_only`` is not safe."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < MINIMUM_TORCH:
        needed = ".".join(map(str, MINIMUM_TORCH))
        raise CheckpointError(f"PyTorch {version} cannot read a .pth file safely (weights_only); install torch {needed} or newer")


def _read(path: Path) -> object:
    """torch.load that executes nothing; every way of failing becomes a CheckpointError in words."""
    try:
        with path.open("rb") as file:
            # Files from before torch 1.6 are no zip archives, and mmap raises for them.
            zipped = file.read(4) == b"PK\x03\x04"
        # A mapped archive's checksums are not checked: numbers that were overwritten in place load as they are.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        raise CheckpointError(_unpickling_text(path.name, str(error))) from error
    except FileNotFoundError as error:
        raise CheckpointError(f"model file not found: {path}") from error
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from error
    except MemoryError as error:
        raise CheckpointError(f"not enough memory to read {path.name}") from error
    except Exception as error:
        # Damage shows up as anything from RuntimeError to EOFError, UnicodeDecodeError or KeyError.
        first_line = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise CheckpointError(f"{path.name} is damaged, incomplete or not a PyTorch file ({DAMAGED}): {first_line}") from error


def _unpickling_text(name: str, message: str) -> str:
    forbidden = re.search(r"GLOBAL (\S+)", message) or re.search(r"class (\S+)", message)
    if forbidden and "ersistent" not in message:
        return f"{name} is refused: its pickle asks for {forbidden[1]}, which is not data, and nothing in it was run"
    return f"{name} is damaged, incomplete or not a PyTorch file ({DAMAGED})"
