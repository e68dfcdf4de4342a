"""The CUDA kernels as torch operators, loaded once for the process."""

from __future__ import annotations

import logging
import threading
from typing import Any

import torch

from albatross_plugin.config import EngineConfig
from albatross_plugin.errors import DeviceError
from albatross_plugin.kernel_loader import load_kernels
from albatross_plugin.model.device import CPU_HINT, cuda_problem

logger = logging.getLogger(__name__)

_lock = threading.Lock()
_loaded: Any = None
_proven: set[int] = set()


def ops(config: EngineConfig | None = None) -> Any:
    """``torch.ops.albatross_rwkv7`` for the current card; see kernels/csrc/ops.cpp for the operators. The first call may build them.

    Raises DeviceError with every reason; a later call tries again.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load(config)
        device = torch.cuda.current_device() if torch.cuda.is_available() else -1
        if device not in _proven:
            _prove(_loaded, device)
            _proven.add(device)
        return _loaded


def _load(config: EngineConfig | None) -> Any:
    found = load_kernels(config)
    if found is None:
        raise DeviceError(f"the CUDA kernels need a card, but {cuda_problem()}. {CPU_HINT}")
    kernels = torch.ops.albatross_rwkv7
    logger.info("CUDA kernels: %s, %s (%s)", found.source, found.path, kernels.build_info())
    return kernels


def _prove(kernels: Any, device: int) -> None:
    """Run the smallest kernel once: code for another card loads without a complaint and fails at its first launch."""
    try:
        kernels.relu_square(torch.zeros(8, dtype=torch.float16, device=torch.device("cuda", device)))
        torch.cuda.synchronize(device)
    except (RuntimeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DeviceError(
            f"the CUDA kernels do not run on card {device}, {torch.cuda.get_device_name(device)}: {reason}. "
            "With cards of several kinds set ALBATROSS_KERNEL_ARCH to PTX for the oldest, such as compute80, and start again."
        ) from error
