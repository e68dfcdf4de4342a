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


def ops(config: EngineConfig | None = None) -> Any:
    """``torch.ops.albatross_rwkv7``; see kernels/csrc/ops.cpp for the operators. The first call may build them.

    Raises DeviceError with every reason; a later call tries again.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load(config)
        return _loaded


def _load(config: EngineConfig | None) -> Any:
    found = load_kernels(config)
    if found is None:
        raise DeviceError(f"the CUDA kernels need a card, but {cuda_problem()}. {CPU_HINT}")
    kernels = torch.ops.albatross_rwkv7
    try:
        # The smallest kernel, run once: code for another card loads without a complaint and fails at its first launch.
        kernels.relu_square(torch.zeros(8, dtype=torch.float16, device="cuda"))
        torch.cuda.synchronize()
    except (RuntimeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DeviceError(f"the CUDA kernels in {found.path} do not run on {torch.cuda.get_device_name()}: {reason}") from error
    logger.info("CUDA kernels: %s, %s (%s)", found.source, found.path, kernels.build_info())
    return kernels
