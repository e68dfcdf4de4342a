"""Loading with the host's own means: .gguf in llama.cpp, .pth in the rwkv package, and state files."""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

from host_stub.errors import ApiError
from host_stub.llama_model import TextLlama, architecture
from host_stub.paths import resolve

_STAGE = r"(?:cuda(?::\d+)?|cpu|mps|dml) (?:fp16|fp32|bf16)(?:i8|i4|i3)?(?: \*\d+\+?)?"
STRATEGY = re.compile(rf"{_STAGE}(?: *-> *{_STAGE})*")
_import_lock = threading.Lock()
_tokenizer: Any = None


def is_gguf(model: str) -> bool:
    return model.lower().endswith(".gguf")


def load_gguf(model: str, strategy: str) -> TextLlama:
    """Raises FileNotFoundError or ValueError with the reason."""
    path = _existing(model)
    architecture(path)
    return TextLlama(path, strategy)


def load_pth(model: str, strategy: str, tokenizer: str | None, custom_cuda: bool, offered: list[str]) -> Any:
    """A TextRWKV. ``offered``: names of plugin strategies, for the error text. Raises ValueError and the package's errors."""
    text = " ".join(strategy.split())
    if not STRATEGY.fullmatch(text):
        others = f", or one of the plugins' strategies: {', '.join(offered)}" if offered else ""
        raise ValueError(f"Invalid strategy {strategy!r}. Use one of the rwkv package, such as 'cuda fp16' or 'cpu fp32'{others}")
    path = _existing(model)
    if not path.endswith(".pth"):
        raise ValueError(f"{path} is neither a .pth nor a .gguf file")
    if tokenizer and Path(tokenizer).stem != "rwkv_vocab_v20230424":
        raise ValueError(f"tokenizer {tokenizer!r} is not supported; this host serves World models (rwkv_vocab_v20230424)")
    seven = _is_version_7(path)
    if seven and "->" in text:
        raise ValueError("an RWKV-7 model runs on one device in the rwkv package; use a strategy of one stage, such as 'cuda fp16'")
    from host_stub.rwkv_model import TextRWKV

    with warnings.catch_warnings():
        # The package is written for torch.jit, which newer versions of torch deprecate at each use.
        warnings.simplefilter("ignore", DeprecationWarning)
        core = _package(seven, custom_cuda).RWKV(path[: -len(".pth")], text)
    if not seven:
        core.args.vocab_size = core.w["emb.weight"].shape[0]
    else:
        _add_layer_strategies(core, text)
    loaded = TextRWKV(core, _pipeline(core))
    loaded.name, loaded.model_path, loaded.version = Path(path).stem, path, core.version
    return loaded


def load_state(model: Any, state: str) -> None:
    """Put a state-tuned file into ``model.state_tuned``; "" takes it away. Raises ApiError 400 and then changes nothing.

    Reads ``model.model.args``, ``.strategy[i].device/.atype`` and ``.version`` only, so a plugin's facade is enough.
    """
    if not state:
        model.state_path, model.state_tuned = "", None
        return
    if not (model.model_path.endswith(".pth") and state.endswith(".pth")):
        raise _bad_state("file format of the model or state model not supported")
    path = resolve(state)
    if path == model.state_path:
        return
    if "\0" in path or not os.path.isfile(path):
        raise _bad_state("state file not found")
    import torch

    try:
        raw = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise _bad_state("state file failed to load") from error
    core = model.model
    names = [f"blocks.{layer}.att.time_state" for layer in range(core.args.n_layer)]
    if not isinstance(raw, dict) or len(raw) != len(names) or not all(name in raw for name in names):
        raise _bad_state("state shape mismatch")
    tuned: list[Any] = []
    for name, place in zip(names, core.strategy, strict=False):
        tensor = _checked_state(raw[name], core.args.n_embd)
        if model.version < 7:
            tensor = tensor.transpose(1, 2)
        shift = [torch.zeros(core.args.n_embd, dtype=place.atype, device=place.device) for _ in range(2)]
        tuned += [shift[0], tensor.to(device=place.device).contiguous(), shift[1]]
    model.state_tuned, model.state_path = tuned, path


def _checked_state(value: Any, width: int) -> Any:
    """One layer's state ``[H, N, N]`` with ``H * N == width``, as finite float32. Raises ApiError 400."""
    import torch

    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_meta or value.is_nested:
        raise _bad_state("state file failed to load")
    if value.dim() != 3 or value.shape[0] * value.shape[1] != width or value.shape[1] != value.shape[2]:
        raise _bad_state("state shape mismatch")
    if not value.is_floating_point():
        raise _bad_state("state file failed to load")
    tensor = value.detach().to(dtype=torch.float)
    if not bool(tensor.isfinite().all()):
        raise _bad_state("state file failed to load")
    return tensor


def _bad_state(message: str) -> ApiError:
    return ApiError(400, message, param="state", code="invalid_state")


def _existing(model: str) -> str:
    path = resolve(model)
    if "\0" in path or not os.path.isfile(path):
        if "\0" not in path and os.path.exists(path):
            raise FileNotFoundError(f"{model!r} is a folder or a device, not a model file")
        raise FileNotFoundError(f"model file not found: {model!r}")
    return path


def _is_version_7(path: str) -> bool:
    """Look at the names in the checkpoint, without running code from it."""
    import torch

    if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < (2, 6):
        raise RuntimeError(f"torch {torch.__version__} cannot read a checkpoint safely; torch 2.6 or newer is needed")
    try:
        names = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except RuntimeError:
        # Files of the older format cannot be mapped.
        names = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(names, dict) or "emb.weight" not in names:
        raise ValueError(f"{path} is not an RWKV checkpoint: it has no emb.weight")
    if names["emb.weight"].shape[0] != 65536:
        raise ValueError(f"{path} has a vocabulary of {names['emb.weight'].shape[0]}; this host serves World models (65536)")
    return "blocks.0.att.r_k" in names


def _package(seven: bool, custom_cuda: bool) -> Any:
    """The package's model module. It reads its switches when imported, so another setting needs another import."""
    wanted = {"RWKV_JIT_ON": "1", "RWKV_V7_ON": "1" if seven else "0", "RWKV_CUDA_ON": "1" if custom_cuda else "0"}
    with _import_lock:
        module = sys.modules.get("rwkv.model")
        if module is None or getattr(module, "_imported_with", None) != wanted:
            sys.modules.pop("rwkv.model", None)
            os.environ.update(wanted)
            module = importlib.import_module("rwkv.model")
            module._imported_with = wanted  # type: ignore[attr-defined]
            _limit_threads()
        return module


def _limit_threads() -> None:
    """One core stays free for the server's event loop, as in a plugin's worker; OMP_NUM_THREADS has the last word."""
    import torch

    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))


def _pipeline(core: Any) -> Any:
    """The package's PIPELINE. Its tokenizer takes a second and much memory to build and never changes: one serves all."""
    global _tokenizer
    from rwkv.utils import PIPELINE

    with _import_lock:
        if _tokenizer is None:
            path = list(sys.path)
            _tokenizer = PIPELINE(core, "rwkv_vocab_v20230424").tokenizer
            # The package puts its own folder in front of every other module.
            sys.path[:] = path
    pipeline = PIPELINE.__new__(PIPELINE)
    pipeline.model, pipeline.tokenizer = core, _tokenizer
    return pipeline


def _add_layer_strategies(core: Any, strategy: str) -> None:
    """What the package keeps for older models only, and what a state file needs: version, and a place per layer."""
    import types

    device = core.z["blocks.0.ln0.weight"].device
    place = types.SimpleNamespace(device=str(device), atype=core.z["blocks.0.ln0.weight"].dtype, strategy=strategy)
    core.version = 7
    core.strategy = [place] * core.args.n_layer
