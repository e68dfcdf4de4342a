"""What a kernel file must fit: its name, torch, CUDA, the Python ABI, the platform and the card's architecture."""

from __future__ import annotations

import re
import sys
import sysconfig
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from albatross_plugin.errors import DeviceError

KERNEL_NAME = "rwkv7_state_fwd_fp16"
# What the kernels are written for.
LEAST_CAPABILITY = 75


@dataclass(frozen=True)
class KernelContext:
    """One build's identity; the six fields of a manifest entry. ``arch`` is ``smNN`` of a card, or ``computeNN`` for PTX."""

    name: str
    torch: str
    cuda: str
    python_abi: str
    platform: str
    arch: str


FIELDS = tuple(item.name for item in fields(KernelContext))


@dataclass(frozen=True)
class TorchFacts:
    """What a build needs to know of the torch that is installed. ``cuda`` is None for a build without CUDA."""

    version: str
    cuda: str | None
    folder: Path
    cxx11_abi: bool = True


def python_abi() -> str:
    """``cp312``, or ``cp313t`` for a Python without the global lock."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}{'t' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''}"


def platform_tag() -> str:
    """``linux_x86_64``, ``win_amd64``, and so on."""
    return re.sub(r"[^a-z0-9_]", "_", sysconfig.get_platform().lower())


def arch_of(text: str) -> str:
    """``sm90`` from ``sm90``, ``sm_90``, ``SM90`` or ``9.0``; ``compute80`` likewise. Raises DeviceError for anything else."""
    found = re.fullmatch(r"(sm|compute)?_?(\d{2,3}|\d{1,2}\.\d)", text.strip().lower())
    number = int(found[2].replace(".", "")) if found else 0
    if found is not None and number < LEAST_CAPABILITY:
        raise DeviceError(
            f"{text!r} is too old: the kernels need compute capability {LEAST_CAPABILITY / 10} or newer, such as sm75 or sm80"
        )
    if found is None:
        raise DeviceError(f"{text!r} names no architecture; use smNN for a card or computeNN for PTX, for example sm80, sm90 or compute80")
    return f"{found[1] or 'sm'}{number}"


def number_of(arch: str) -> int:
    """90 for ``sm90`` and ``compute90``."""
    return int(re.sub(r"\D", "", arch))


def torch_facts() -> TorchFacts:
    """Of the torch that is imported here."""
    import torch

    version: Any = torch.version
    return TorchFacts(str(torch.__version__), version.cuda, Path(torch.__file__).parent, bool(torch.compiled_with_cxx11_abi()))


def card_arch() -> str:
    """``smNN`` of the current card. Raises DeviceError for one that the kernels cannot run on."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    number = major * 10 + minor
    if number < LEAST_CAPABILITY:
        name = torch.cuda.get_device_name()
        raise DeviceError(f"{name} has compute capability {major}.{minor}; the kernels need {LEAST_CAPABILITY / 10} or newer.")
    return f"sm{number}"


def context_for(facts: TorchFacts, arch: str) -> KernelContext:
    """The identity of a build for ``arch`` by this Python and torch."""
    return KernelContext(KERNEL_NAME, facts.version, facts.cuda or "", python_abi(), platform_tag(), arch)
