"""What is looked at before an engine starts: the model's file, the device, the kernels."""

from __future__ import annotations

import contextlib
from pathlib import Path

from albatross_plugin.config import EngineConfig
from albatross_plugin.errors import REQUIREMENT_TEXT, EngineInitError

# A host's own folder, and those it is started from.
FOLDERS = (Path(), Path(".."), Path("backend-python"), Path("build/bin"), Path("../build/bin"))


def resolve(model_path: str) -> str:
    """The first place where a host would look for a relative path and the file exists; else the path as given."""
    path = Path(model_path)
    with contextlib.suppress(RuntimeError):
        # A name like "~x" of a user who is not there stays as it is, and is not found.
        path = path.expanduser()
    for folder in FOLDERS:
        if (folder / path).is_file():
            return str((folder / path).resolve())
    return str(path)


def check_model_path(model_path: str) -> None:
    """Raises EngineInitError for what is no .pth file, or not there."""
    if not model_path.lower().endswith(".pth"):
        raise EngineInitError(f"{REQUIREMENT_TEXT} {model_path!r} is not a .pth file; choose another strategy for it.")
    if not Path(model_path).is_file():
        if Path(model_path).exists():
            # Opening a pipe would wait for a writer.
            raise EngineInitError(f"{model_path} is a folder or a device, not a model file")
        raise EngineInitError(f"model file not found: {model_path}")


def check_device(config: EngineConfig) -> None:
    """Raises EngineInitError when torch or the device is missing."""
    try:
        from albatross_plugin.model import device
    except Exception as error:
        # A broken installation of torch raises anything from ImportError to OSError.
        raise EngineInitError(f"PyTorch cannot be imported ({type(error).__name__}: {error}); install torch 2.6 or newer.") from error
    device.check_device(config.device, config.workers)


def prepare_kernels(config: EngineConfig, model_path: str, token_limit: int) -> None:
    """Build the kernels, if that is needed, before the load's clock starts; first a look at the file, which takes no time."""
    from albatross_plugin.model.cuda_weights import open_for_cuda
    from albatross_plugin.model.kernels import ops

    open_for_cuda(model_path, token_limit)
    ops(config)
