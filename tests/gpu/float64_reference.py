"""RWKV-7 in float64, written down from the formulas, token by token where the recurrence asks for it. For one sequence."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

HEAD = 64


class Float64Model:
    """The same float16-rounded weights as the card has, in float64."""

    def __init__(self, checkpoint: Mapping[str, Tensor], device: str = "cuda") -> None:
        self._w = {
            key: value.to(device).half().double().squeeze() if "r_k" not in key else value.to(device).half().double()
            for key, value in checkpoint.items()
        }
        self.layers = 1 + max(int(key.split(".")[1]) for key in checkpoint if key.startswith("blocks."))
        width = checkpoint["emb.weight"].shape[1]
        # The engine keeps the table normalised, in half precision.
        table = F.layer_norm(self._w["emb.weight"], (width,), self._w["blocks.0.ln0.weight"], self._w["blocks.0.ln0.bias"])
        self._table = table.half().double()
        self._width, self._heads = width, width // HEAD
        self.state = torch.zeros(self.layers, self._heads, HEAD, HEAD, dtype=torch.float64, device=device)
        self._shift = torch.zeros(self.layers, 2, width, dtype=torch.float64, device=device)

    def feed(self, ids: list[int]) -> Tensor:
        """Logits [T, V] in float64; the state advances."""
        x = self._table[torch.tensor(ids, device=self._table.device)]
        first = None
        for layer in range(self.layers):
            mixed, first = self._time_mix(layer, x, first)
            x = x + mixed
            x = x + self._channel_mix(layer, x)
        w = self._w
        return F.layer_norm(x, (self._width,), w["ln_out.weight"], w["ln_out.bias"]) @ w["head.weight"].t()

    def _shifted(self, layer: int, part: int, xn: Tensor) -> Tensor:
        previous = torch.cat((self._shift[layer, part][None], xn[:-1]))
        self._shift[layer, part] = xn[-1]
        return previous - xn

    def _time_mix(self, layer: int, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        w, att = self._w, f"blocks.{layer}.att."
        xn = F.layer_norm(x, (self._width,), w[f"blocks.{layer}.ln1.weight"], w[f"blocks.{layer}.ln1.bias"])
        delta = self._shifted(layer, 0, xn)
        mixed = {c: xn + delta * w[att + "x_" + c] for c in "rwkvag"}
        r, k, v = (mixed[c] @ w[att + name + ".weight"].t() for c, name in (("r", "receptance"), ("k", "key"), ("v", "value")))
        decay = torch.exp(-0.606531 * torch.sigmoid(w[att + "w0"] + torch.tanh(mixed["w"] @ w[att + "w1"]) @ w[att + "w2"]))
        a = torch.sigmoid(w[att + "a0"] + mixed["a"] @ w[att + "a1"] @ w[att + "a2"])
        g = torch.sigmoid(mixed["g"] @ w[att + "g1"]) @ w[att + "g2"]
        if first is None:
            first = v
        else:
            v = v + (first - v) * torch.sigmoid(w[att + "v0"] + mixed["v"] @ w[att + "v1"] @ w[att + "v2"])
        kk = F.normalize((k * w[att + "k_k"]).view(-1, self._heads, HEAD), dim=-1, eps=1e-12)
        k = (k * (1 + (a - 1) * w[att + "k_a"])).view_as(kk)
        r, v, decay, b = r.view_as(kk), v.view_as(kk), decay.view_as(kk), kk * a.view_as(kk)
        outputs = []
        state = self.state[layer]
        for t in range(x.shape[0]):
            removed = state @ kk[t, :, :, None]
            state = state * decay[t, :, None, :] - removed @ b[t, :, None, :] + v[t, :, :, None] @ k[t, :, None, :]
            outputs.append((state @ r[t, :, :, None]).squeeze(-1))
        self.state[layer] = state
        y = F.group_norm(torch.stack(outputs).view(-1, self._width), self._heads, w[att + "ln_x.weight"], w[att + "ln_x.bias"], 64e-5)
        y = y + ((r * k * w[att + "r_k"]).sum(-1, keepdim=True) * v).view_as(y)
        return (y * g) @ w[att + "output.weight"].t(), first

    def _channel_mix(self, layer: int, x: Tensor) -> Tensor:
        w, ffn = self._w, f"blocks.{layer}.ffn."
        xn = F.layer_norm(x, (self._width,), w[f"blocks.{layer}.ln2.weight"], w[f"blocks.{layer}.ln2.bias"])
        mixed = xn + self._shifted(layer, 1, xn) * w[ffn + "x_k"]
        return torch.relu(mixed @ w[ffn + "key.weight"].t()).square() @ w[ffn + "value.weight"].t()


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """||found - wanted|| / ||wanted|| in float64; NaN when anything is NaN."""
    return float((found.double() - wanted).norm() / wanted.norm())
