"""Is the device that a strategy asks for there, and are there enough of them?"""

from __future__ import annotations

import os

import torch

from albatross_plugin.errors import NO_CUDA_BUILD, NO_DRIVER, REQUIREMENT_TEXT, DeviceError

CPU_HINT = "To run without a card, add device=cpu to the strategy, for example: albatross device=cpu"
# Workers on the CPU share its cores, so more of them than cores only wait for each other.
LEAST_CPU_WORKERS = 8


def cuda_problem() -> str | None:
    """Why this torch cannot use a CUDA device, in the words that desktop clients translate; None when it can."""
    if getattr(torch.version, "hip", None):
        return f"PyTorch {torch.__version__} is a ROCm build, and ROCm has not been tested with this engine"
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is {NO_CUDA_BUILD} enabled"
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} (CUDA {torch.version.cuda}) found {NO_DRIVER} or no card"
    return None


def check_device(device: str, workers: int) -> None:
    """Raise DeviceError unless ``device`` ("cpu" or "cuda") can run ``workers`` workers, one GPU each."""
    if device == "cpu":
        most = max(LEAST_CPU_WORKERS, os.cpu_count() or 1)
        if workers > most:
            raise DeviceError(f"workers={workers} is more than this machine's processors can use; choose workers={most} or fewer.")
        return
    problem = cuda_problem()
    if problem is not None:
        raise DeviceError(f"{REQUIREMENT_TEXT} {problem}. {CPU_HINT}")
    count = torch.cuda.device_count()
    if workers > count:
        raise DeviceError(f"workers={workers} needs {workers} GPUs, one each, but {count} can be used. Choose workers={count} or fewer.")
