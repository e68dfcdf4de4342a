"""Small RWKV-7 checkpoints for tests, with the key names and shapes of the official files.

F1: random weights. F2: a script model, which says a chosen sequence of tokens. F3: a poison model, whose logits become
infinite after a chosen token. One set of weights can also be written as GGUF, for llama.cpp.
"""

from __future__ import annotations

import ast
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

HEAD = 64
SQUARE = ("receptance", "key", "value", "output")


class _Random:
    """Seeded tensors: normal ones around ``mean``, and uniform ones in [0, 1)."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float, mean: float = 0.0) -> Tensor:
        return torch.randn(shape, generator=self._generator) * scale + mean

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator)


def lora_ranks(width: int) -> dict[str, int]:
    """Ranks as the official models choose them for a width, in multiples of 32."""
    wanted = {"w": 1.8 * width**0.5, "a": 1.8 * width**0.5, "v": 1.3 * width**0.5, "g": 0.6 * width**0.8}
    return {name: max(32, round(size / 32) * 32) for name, size in wanted.items()}


def random_checkpoint(
    layers: int = 2, width: int = 128, vocab: int = 65536, seed: int = 0, dtype: torch.dtype = torch.float32, head_scale: float = 2.0
) -> dict[str, Tensor]:
    """F1. The logits have a standard deviation of about ``head_scale`` and depend on the whole prompt."""
    random = _Random(seed)
    narrow = width**-0.5
    state = {"emb.weight": random.normal(vocab, width, scale=0.1), "head.weight": random.normal(vocab, width, scale=head_scale * narrow)}
    norms = ["blocks.0.ln0", "ln_out"]
    for layer in range(layers):
        block = f"blocks.{layer}."
        norms += [block + name for name in ("ln1", "ln2", "att.ln_x")]
        state.update({block + "att." + name: value for name, value in _time_mix(random, width).items()})
        state[block + "ffn.x_k"] = random.uniform(1, 1, width)
        state[block + "ffn.key.weight"] = random.normal(4 * width, width, scale=narrow)
        state[block + "ffn.value.weight"] = random.normal(width, 4 * width, scale=narrow / 2)
    for name in norms:
        state[name + ".weight"] = random.normal(width, scale=0.1, mean=1.0)
        state[name + ".bias"] = random.normal(width, scale=0.1)
    return {key: value.to(dtype) for key, value in state.items()}


def _time_mix(random: _Random, width: int) -> dict[str, Tensor]:
    ranks = lora_ranks(width)
    part = {f"x_{name}": random.uniform(1, 1, width) for name in "rwkvag"}
    # Mean and spread of the vectors that the LoRAs add to: decay, in-context rate and value residual.
    for name, mean, spread in (("w", -1.0, 1.0), ("a", 0.0, 0.3), ("v", 1.0, 0.3)):
        part[name + "0"] = random.normal(1, 1, width, scale=spread, mean=mean)
    for name, rank in ranks.items():
        part[name + "1"] = random.normal(width, rank, scale=width**-0.5)
        part[name + "2"] = random.normal(rank, width, scale=rank**-0.5 if name == "g" else 0.1)
    part["k_k"] = random.normal(1, 1, width, scale=0.05, mean=0.85)
    part["k_a"] = random.normal(1, 1, width, scale=0.05, mean=1.0)
    part["r_k"] = random.normal(width // HEAD, HEAD, scale=0.1)
    part.update({f"{name}.weight": random.normal(width, width, scale=width**-0.5) for name in SQUARE})
    return part


def script_checkpoint(tokens: Sequence[int], layers: int = 2, width: int = 128, vocab: int = 65536) -> dict[str, Tensor]:
    """F2. Greedily, each token is followed by the next one, and the last by token 0. All tokens differ; at most ``width``."""
    if len(set(tokens)) != len(tokens) or len(tokens) > width:
        raise ValueError(f"a script is at most {width} different tokens, got {list(tokens)}")
    state = random_checkpoint(layers, width, vocab)
    silent = [key for key in state if key.endswith(("att.output.weight", "ffn.value.weight"))]
    for key in [*silent, "emb.weight", "head.weight", "blocks.0.ln0.bias", "ln_out.bias"]:
        state[key] = torch.zeros_like(state[key])
    for key in ("blocks.0.ln0.weight", "ln_out.weight"):
        state[key] = torch.ones_like(state[key])
    for direction, token in enumerate(tokens):
        following = tokens[direction + 1] if direction + 1 < len(tokens) else 0
        state["emb.weight"][token, direction] = 1.0
        state["head.weight"][following, direction] = 10.0
    return state


def poison_checkpoint(
    tokens: Sequence[int], trigger: int, layers: int = 2, width: int = 128, vocab: int = 65536, row: int = 60000
) -> dict[str, Tensor]:
    """F3. As F2, but after ``trigger``, one of ``tokens``, the logit of the unused token ``row`` is +infinity."""
    if row in tokens:
        raise ValueError(f"token {row} carries the poison; the script needs another one")
    state = script_checkpoint(tokens, layers, width, vocab)
    state["head.weight"][row, list(tokens).index(trigger)] = math.inf
    return state


def write(path: str | Path, state: dict[str, Tensor]) -> Path:
    """Save a state dict as a .pth file."""
    torch.save(state, path)
    return Path(path)


def vocabulary_file() -> Path:
    """The World vocabulary in an installed package, found without importing that package."""
    for package in ("pyrwkv_tokenizer", "rwkv"):
        found = importlib.util.find_spec(package)
        for folder in (found.submodule_search_locations or []) if found else []:
            path = Path(folder) / "rwkv_vocab_v20230424.txt"
            if path.is_file():
                return path
    raise FileNotFoundError("rwkv_vocab_v20230424.txt is in neither pyrwkv-tokenizer nor rwkv")


def _gguf_vocabulary(size: int) -> list[bytes]:
    """Token texts as llama.cpp stores them for this tokenizer: the bytes as the body of a Python bytes literal."""
    texts = [b"<s>"]
    for line in vocabulary_file().read_text(encoding="utf-8").splitlines():
        literal = line.split(" ", 1)[1].rsplit(" ", 1)[0]
        token = ast.literal_eval(literal)
        raw = token if isinstance(token, bytes) else token.encode()
        texts.append(repr(raw)[2:-1].encode())
    return texts + [b"<unused %d>" % number for number in range(len(texts), size)]


def write_gguf(pth: str | Path, target: str | Path) -> Path:
    """Write the weights of a .pth file as GGUF, architecture rwkv7, float32."""
    import gguf

    state = {key: value.float() for key, value in torch.load(pth, weights_only=True).items()}
    vocab, width = state["emb.weight"].shape
    layers = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("blocks."))
    writer = gguf.GGUFWriter(str(target), "rwkv7")
    writer.add_block_count(layers)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(state["blocks.0.ffn.key.weight"].shape[0])
    writer.add_context_length(2**20)
    writer.add_head_count(0)
    writer.add_wkv_head_size(HEAD)
    writer.add_layer_norm_eps(1e-5)
    ranks = {name: state[f"blocks.0.att.{name}1"].shape[1] for name in "wavg"}
    writer.add_decay_lora_rank(ranks["w"])
    writer.add_iclr_lora_rank(ranks["a"])
    writer.add_value_residual_mix_lora_rank(ranks["v"])
    writer.add_gate_lora_rank(ranks["g"])
    writer.add_file_type(0)
    texts = _gguf_vocabulary(vocab)
    unused = sum(text.startswith(b"<unused ") for text in texts)
    kinds = [gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (vocab - 1 - unused) + [gguf.TokenType.UNUSED] * unused
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list(texts[:vocab])
    writer.add_token_types(kinds[:vocab])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for name, tensor in _gguf_tensors(state, layers).items():
        writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(target)


def _gguf_tensors(state: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    tensors = {"token_embd.weight": state["emb.weight"], "output.weight": state["head.weight"]}
    norms = {"blocks.0.ln0": "token_embd_norm", "ln_out": "output_norm"}
    for layer in range(layers):
        source, target = f"blocks.{layer}.", f"blk.{layer}."
        att, mix = source + "att.", target + "time_mix_"
        norms.update({source + "ln1": target + "attn_norm", source + "ln2": target + "attn_norm_2", att + "ln_x": mix + "ln"})
        tensors[mix + "lerp_fused.weight"] = torch.stack([state[f"{att}x_{name}"].view(1, 1, -1) for name in "rwkvag"])
        for name in "wavg":
            tensors[f"{mix}{name}1.weight"] = state[f"{att}{name}1"].T
            tensors[f"{mix}{name}2.weight"] = state[f"{att}{name}2"].T
        for name in ("w0", "a0", "v0", "k_k", "k_a", "r_k"):
            tensors[f"{mix}{name}.weight"] = state[att + name].flatten()
        for name in SQUARE:
            tensors[f"{mix}{name}.weight"] = state[f"{att}{name}.weight"]
        tensors[target + "channel_mix_lerp_k.weight"] = state[source + "ffn.x_k"].view(1, 1, -1)
        for name in ("key", "value"):
            tensors[f"{target}channel_mix_{name}.weight"] = state[f"{source}ffn.{name}.weight"]
    for source, target in norms.items():
        tensors[target + ".weight"], tensors[target + ".bias"] = state[source + ".weight"], state[source + ".bias"]
    return tensors
