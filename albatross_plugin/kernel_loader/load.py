"""Loading the kernels into torch: a prebuilt file whose manifest entry fits, else what was built here, else a build."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import albatross_plugin
from albatross_plugin.config import EngineConfig
from albatross_plugin.errors import NO_CUDA_BUILD, DeviceError
from albatross_plugin.kernel_loader.build import Job, build, cache_root
from albatross_plugin.kernel_loader.context import KernelContext, TorchFacts, arch_of, card_arch, context_for, torch_facts
from albatross_plugin.kernel_loader.manifest import Entry, find_prebuilt

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """What torch has loaded; ``source`` is "prebuilt", "cache" or "build"; ``rejected``: why prebuilt files were not taken."""

    path: Path
    source: str
    context: KernelContext
    rejected: tuple[str, ...]


def kernels_folder() -> Path:
    """Where the manifest and ``csrc`` are: inside the installed package, or beside it in a source tree."""
    package = Path(albatross_plugin.__file__).parent
    inside = package / "_kernels"
    return inside if inside.is_dir() else package.parent / "kernels"


def load_kernels(config: EngineConfig | None = None, root: Path | None = None) -> Loaded | None:
    """Load torch.ops.albatross_rwkv7 for the current card. None, and nothing compiled, without a CUDA card.

    Raises DeviceError: a ROCm torch, a card or word of ALBATROSS_KERNEL_ARCH that cannot be served, or no prebuilt file and no
    build; its text holds why each prebuilt file was passed over and what kept the build from working.
    """
    import torch

    if getattr(torch.version, "hip", None):
        raise DeviceError(f"PyTorch {torch.__version__} is a ROCm build, and the kernels have not been tested on ROCm.")
    if not torch.cuda.is_available():
        return None
    config = EngineConfig.load() if config is None else config
    root = kernels_folder() if root is None else root
    facts = torch_facts()
    forced = None if config.kernel_arch == "auto" else arch_of(config.kernel_arch)
    context = context_for(facts, card_arch())
    choice = find_prebuilt(context, root, forced)
    rejected = list(choice.rejected)
    if choice.entry is not None:
        problem = _load_prebuilt(root, choice.entry, context)
        if problem is None:
            return Loaded(root / choice.entry.path, "prebuilt", context, tuple(rejected))
        rejected.append(f"{choice.entry}: {problem}")
    for reason in rejected:
        logger.info("prebuilt kernels passed over: %s", reason)
    try:
        path, source = _load_built(Job(root / "csrc", facts, (forced or context.arch,), config.build_timeout), cache_root(config.cache_dir))
    except DeviceError as error:
        without = "; ".join(rejected) or "the manifest lists none"
        raise DeviceError(f"no CUDA kernels for {context.arch} and torch {facts.version}: {error} Prebuilt: {without}.") from error
    return Loaded(path, source, context, tuple(rejected))


def _load_library(path: Path) -> str | None:
    """None, or why the file cannot be loaded, in one line."""
    import torch

    try:
        torch.ops.load_library(str(path))
    except (OSError, RuntimeError) as error:
        # torch tells the path, and what the system's loader said (a missing symbol, say) only in the cause.
        cause = error.__cause__ or error.__context__ or error
        return (str(cause).strip() or str(error).strip() or type(error).__name__).splitlines()[0]
    return None


def _load_prebuilt(root: Path, entry: Entry, context: KernelContext) -> str | None:
    problem = _load_library(root / entry.path)
    if problem is not None:
        logger.warning(
            "the prebuilt kernels %s, made for torch %s, do not load into torch %s, so they are built from source: %s",
            entry.path,
            entry.context.torch,
            context.torch,
            problem,
        )
    return problem


def _load_built(job: Job, cache: Path) -> tuple[Path, str]:
    path, made = build(job, cache)
    problem = _load_library(path)
    if problem is not None and not made:
        # Damaged on the disk, or not what its name says.
        logger.warning("the cached kernels %s do not load and are built again: %s", path, problem)
        path, made = build(job, cache, fresh=True)
        problem = _load_library(path)
    if problem is not None:
        raise DeviceError(f"the kernels that were just built do not load into torch {job.facts.version}: {problem} ({path}).")
    return path, "build" if made else "cache"


def cuda_torch_facts() -> TorchFacts:
    """The facts for a build by hand. Raises DeviceError when this torch has no CUDA."""
    facts = torch_facts()
    if facts.cuda is None:
        raise DeviceError(f"PyTorch {facts.version} is {NO_CUDA_BUILD} enabled; install a CUDA build of it to build kernels.")
    return facts
