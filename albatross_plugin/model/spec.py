"""ModelSpec: the sizes of an RWKV-7 model, read from its weights, and the keys and shapes that such a model has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from albatross_plugin.errors import CheckpointError

HEAD_SIZE = 64
NEEDED = "This engine serves RWKV-7 models with heads of 64."

# Per layer: key -> shape, where C is the width, F the width of the channel mix and * a LoRA rank that the next dimension names.
_VECTORS = tuple(f"att.x_{c}" for c in "rwkvag") + ("att.w0", "att.a0", "att.v0", "att.k_k", "att.k_a", "ffn.x_k")
_NORMS = ("ln1", "ln2", "att.ln_x")
_SQUARES = ("att.receptance.weight", "att.key.weight", "att.value.weight", "att.output.weight")
_LORAS = ("att.w", "att.a", "att.v", "att.g")
_VALUE_RESIDUAL = ("att.v0", "att.v1", "att.v2")
_LAYER_KEY = re.compile(r"blocks\.(0|[1-9][0-9]*)\.(.+)")


@dataclass(frozen=True)
class ModelSpec:
    """Sizes of one model. ``n_ffn`` is the width of the channel mix; head size is always 64."""

    name: str
    n_layer: int
    n_embd: int
    n_ffn: int
    vocab_size: int

    @property
    def n_head(self) -> int:
        return self.n_embd // HEAD_SIZE


def read_spec(name: str, tensors: Mapping[str, Tensor]) -> ModelSpec:
    """Check that ``tensors`` are a whole RWKV-7 model and nothing else, and return its sizes.

    Raises CheckpointError that names the key at fault. Looks at names, types and shapes only, so it is done
    before anything large is read.
    """
    if not tensors:
        raise CheckpointError(f"{name} holds no tensors. {NEEDED}")
    _check_generation(name, tensors)
    if "emb.weight" not in tensors:
        some = ", ".join(sorted(tensors)[:3])
        raise CheckpointError(f"{name} has no emb.weight (it has {some} ...). {NEEDED}")
    vocab, width = _matrix(name, "emb.weight", tensors["emb.weight"])
    heads, head_size = _matrix(name, "blocks.0.att.r_k", tensors["blocks.0.att.r_k"])
    if head_size != HEAD_SIZE:
        raise CheckpointError(f"{name}: blocks.0.att.r_k has shape {[heads, head_size]}, so the head size is {head_size}. {NEEDED}")
    if width % HEAD_SIZE:
        raise CheckpointError(f"{name}: emb.weight is {width} wide, which is no multiple of {HEAD_SIZE}. {NEEDED}")
    layers = _count_layers(name, tensors)
    if "blocks.0.ffn.key.weight" not in tensors:
        raise CheckpointError(f"{name}: blocks.0.ffn.key.weight is missing")
    hidden = _matrix(name, "blocks.0.ffn.key.weight", tensors["blocks.0.ffn.key.weight"])[0]
    spec = ModelSpec(name, layers, width, hidden, vocab)
    _check_keys(spec, tensors)
    return spec


def check_vocabulary(spec: ModelSpec, token_limit: int) -> None:
    """Refuse a model that has no row for some token of the tokenizer: such an id would read past the table."""
    if spec.vocab_size < token_limit:
        raise CheckpointError(
            f"{spec.name}: emb.weight has {spec.vocab_size} rows, but the tokenizer has tokens up to {token_limit - 1}. "
            "Model and tokenizer do not belong together."
        )


def _check_generation(name: str, keys: Iterable[str]) -> None:
    """Say which older RWKV this is; ``att.r_k`` is in version 7 only."""
    found = [(match[1], match[2]) for match in map(_LAYER_KEY.fullmatch, keys) if match]
    if not found or ("0", "att.r_k") in found:
        if not found:
            raise CheckpointError(f"{name} has no key blocks.0.att.r_k, nor any other layer. {NEEDED}")
        return
    names = {key for _, key in found}
    signs = (("att.time_maa_x", 6), ("att.ln_x.weight", 5), ("att.time_decay", 4))
    for sign, version in signs:
        if sign in names and any(key.startswith("att.time_") for key in names):
            raise CheckpointError(f"{name} is an RWKV-{version} model: it has blocks.N.{sign} and no blocks.0.att.r_k. {NEEDED}")
    raise CheckpointError(f"{name} is not an RWKV-7 model: blocks.0.att.r_k is missing. {NEEDED}")


def _count_layers(name: str, keys: Iterable[str]) -> int:
    """How many layers there are; they must be numbered from 0 without a gap.

    Numbers stay text, and nothing is built by their size: one odd key may name any layer.
    """
    found = {match[1]: key for key in keys if (match := _LAYER_KEY.fullmatch(key))}
    count = 0
    while found.pop(str(count), None) is not None:
        count += 1
    if found:
        odd = found[min(found, key=lambda number: (len(number), number))]
        raise CheckpointError(f"{name}: blocks.{count}.att.r_k is missing, and so is all of layer {count}, but there is {odd[:100]}")
    return count


def _check_keys(spec: ModelSpec, tensors: Mapping[str, Tensor]) -> None:
    """Every expected key is there with its shape, and there is no other."""
    expected = set()
    for key, shape in expected_shapes(spec):
        expected.add(key)
        tensor = tensors.get(key)
        if tensor is None:
            if is_optional(key):
                continue
            raise CheckpointError(f"{spec.name}: {key} is missing (the model has layers 0 to {spec.n_layer - 1})")
        if not tensor.is_floating_point():
            raise CheckpointError(f"{spec.name}: {key} holds {str(tensor.dtype).removeprefix('torch.')}, not floating-point numbers")
        _check_shape(spec.name, key, tensor, shape, tensors)
    unknown = sorted(key for key in tensors if key not in expected)
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise CheckpointError(f"{spec.name}: {unknown[0]}{more} is not part of RWKV-7 as this engine knows it, so its text would be wrong")


def _check_shape(name: str, key: str, tensor: Tensor, shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> None:
    """Vectors may carry leading dimensions of 1, as the official files do. -1 stands for a LoRA rank."""
    actual = tuple(tensor.shape)
    if len(shape) == 1 and len(actual) > 1:
        while len(actual) > 1 and actual[0] == 1:
            actual = actual[1:]
    if len(shape) == 2 and -1 in shape and len(actual) == 2:
        partner = tensors.get(key[:-1] + "1")
        rank = partner.shape[-1] if partner is not None and key.endswith("2") else actual[-1]
        shape = tuple(rank if size == -1 else size for size in shape)
    if actual != shape or 0 in actual:
        if 0 in actual:
            raise CheckpointError(f"{name}: {key} has shape {_words(tensor)}, which holds nothing")
        wanted = " x ".join("rank" if size == -1 else str(size) for size in shape)
        raise CheckpointError(f"{name}: {key} has shape {_words(tensor)}, expected {wanted}")


def expected_shapes(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(key, shape) of every tensor of the model, layer after layer; -1 is a LoRA rank, which the weights decide."""
    width, hidden, vocab = spec.n_embd, spec.n_ffn, spec.vocab_size
    yield from (("emb.weight", (vocab, width)), ("head.weight", (vocab, width)))
    yield from _norm_shapes("blocks.0.ln0", width)
    for layer in range(spec.n_layer):
        block = f"blocks.{layer}."
        yield block + "att.r_k", (spec.n_head, HEAD_SIZE)
        for key in _VECTORS:
            yield block + key, (width,)
        for key in _SQUARES:
            yield block + key, (width, width)
        for lora in _LORAS:
            yield from ((f"{block}{lora}1", (width, -1)), (f"{block}{lora}2", (-1, width)))
        yield from ((block + "ffn.key.weight", (hidden, width)), (block + "ffn.value.weight", (width, hidden)))
        for norm in _NORMS:
            yield from _norm_shapes(block + norm, width)
    yield from _norm_shapes("ln_out", width)


def _norm_shapes(norm: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((norm + ".weight", (width,)), (norm + ".bias", (width,)))


def is_optional(key: str) -> bool:
    """Whether a key may be missing, and is not used: the first layer makes the value that later ones mix in."""
    return key.startswith("blocks.0.") and key.removeprefix("blocks.0.") in _VALUE_RESIDUAL


def _matrix(name: str, key: str, tensor: Tensor) -> tuple[int, int]:
    if tensor.dim() != 2:
        raise CheckpointError(f"{name}: {key} has shape {_words(tensor)}, expected two dimensions")
    return tensor.shape[0], tensor.shape[1]


def _words(tensor: Tensor) -> str:
    """A shape as the messages write it."""
    return " x ".join(map(str, tensor.shape)) or "of a single number"
