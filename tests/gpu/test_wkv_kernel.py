"""The time mix between its products (wkv) against float64, for rows of one token and of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor

from albatross_plugin.model.kernels import ops

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)

DEVICE = "cuda"
HEAD = 64
SLOTS = 23
SCRATCH = SLOTS - 1
DTYPES = [torch.float16, torch.float32]


def halfs(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale + shift).half()


@dataclass
class Case:
    """Random inputs for rows with these slots and lengths, and ``spare`` tokens of no row; ``first`` is layer 0."""

    width: int
    slots: Sequence[int]
    lengths: Sequence[int]
    dtype: torch.dtype
    first: bool = False
    decoding: bool = False
    spare: int = 0
    vectors: dict[str, Tensor] = field(default_factory=dict)
    constants: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens, self.heads = sum(self.lengths) + self.spare, self.width // HEAD
        self.state = torch.randn(SLOTS, self.heads, HEAD, HEAD, device=DEVICE).to(self.dtype)
        for name in ("r", "k", "v", "w_up", "a_up", "v_up", "g"):
            self.vectors[name] = halfs(self.tokens, self.width, scale=2.0 if name == "w_up" else 1.0)
        self.v_first = halfs(self.tokens, self.width) if not self.first else torch.full_like(self.vectors["v"], float("nan"))
        for name, shift in (("w0", -2.0), ("a0", 0.0), ("v0", 0.5), ("k_k", 0.8), ("k_a", 1.0), ("ln_weight", 1.0), ("ln_bias", 0.0)):
            self.constants[name] = halfs(self.width, scale=0.5, shift=shift)
        self.constants["r_k"] = halfs(self.heads, HEAD, scale=0.2)
        self.starts = [0]
        for length in self.lengths:
            self.starts.append(self.starts[-1] + length)

    def run(self) -> Tensor:
        """Out, with NaN where nothing was written; state and v_first change in place."""
        out = torch.full_like(self.vectors["v"], float("nan"))
        v, c = self.vectors, self.constants
        slots = torch.tensor(list(self.slots), dtype=torch.int32, device=DEVICE)
        starts = None if self.decoding else torch.tensor(self.starts, dtype=torch.int32, device=DEVICE)
        v_up, v0 = (None, None) if self.first else (v["v_up"], c["v0"])
        ops().wkv(
            self.state, slots, starts, v["r"], v["k"], v["v"], v["w_up"], v["a_up"], v_up, v["g"], self.v_first, c["w0"], c["a0"], v0,
            c["k_k"], c["k_a"], c["r_k"], c["ln_weight"], c["ln_bias"], out, SCRATCH,
        )  # fmt: skip
        return out

    def wanted(self) -> tuple[Tensor, Tensor]:
        """State and out in float64, from the state as it is now; rows in the scratch slot are left alone."""
        state = self.state.double()
        out = torch.full((self.tokens, self.width), float("nan"), dtype=torch.float64, device=DEVICE)
        for row, slot in enumerate(self.slots):
            if slot != SCRATCH:
                span = slice(self.starts[row], self.starts[row + 1])
                out[span] = self._row(state[slot], span)
        return state, out

    def _row(self, state: Tensor, span: slice) -> Tensor:
        c = {name: value.double().view(self.heads, HEAD) for name, value in self.constants.items()}
        x = {name: value[span].double().view(-1, self.heads, HEAD) for name, value in self.vectors.items()}
        first = self.v_first[span].double().view(-1, self.heads, HEAD)
        decay = torch.exp(-0.606531 * torch.sigmoid(c["w0"] + x["w_up"]))
        a = torch.sigmoid(c["a0"] + x["a_up"])
        v = x["v"] if self.first else x["v"] + (first - x["v"]) * torch.sigmoid(c["v0"] + x["v_up"])
        kk = torch.nn.functional.normalize(x["k"] * c["k_k"], dim=-1, eps=1e-12)
        k = x["k"] * (1 + (a - 1) * c["k_a"])
        outputs = []
        for t in range(k.shape[0]):
            removed = state @ kk[t, :, :, None]
            state.mul_(decay[t, :, None, :])
            state.add_(v[t, :, :, None] @ k[t, :, None, :] - removed @ (kk[t] * a[t])[:, None, :])
            outputs.append((state @ x["r"][t, :, :, None]).squeeze(-1))
        y = torch.stack(outputs)
        y = (y - y.mean(-1, keepdim=True)) / torch.sqrt(y.var(-1, unbiased=False, keepdim=True) + 64e-5)
        y = y * c["ln_weight"] + c["ln_bias"] + (x["r"] * k * c["r_k"]).sum(-1, keepdim=True) * v
        return (y * x["g"]).reshape(-1, self.width)


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def check(case: Case) -> None:
    """One run against float64: outputs, states, first values, and everything that must stay as it was."""
    old_state, old_first = case.state.clone(), case.v_first.clone()
    state, wanted = case.wanted()
    out = case.run()
    used = [slot for slot in case.slots if slot != SCRATCH]
    kept = [slot for slot in range(SLOTS) if slot not in used]
    real = [slot != SCRATCH for slot, n in zip(case.slots, case.lengths, strict=True) for _ in range(n)]
    written = torch.tensor(real + [False] * case.spare, device=DEVICE)
    assert error(out[written], wanted[written]) < 1e-3
    assert out[~written].isnan().all()
    assert error(case.state[used], state[used]) < (1e-3 if case.dtype == torch.float16 else 2e-5)
    assert torch.equal(case.state[kept], old_state[kept])
    if case.first:
        assert torch.equal(case.v_first[written], case.vectors["v"][written])
    else:
        assert torch.equal(case.v_first, old_first)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("width", [64, 128, 768, 2048])
def test_one_token_a_row(width: int, first: bool, dtype: torch.dtype) -> None:
    case = Case(width, [7, 0, 21, SCRATCH, 3, 12, SCRATCH], [1] * 7, dtype, first, decoding=True)
    check(case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("width", [64, 192, 768])
def test_rows_of_any_length(width: int, first: bool, dtype: torch.dtype) -> None:
    lengths = [1, 17, 16, 15, 1, 33, 2, 3, 48, 1, 5]
    check(Case(width, [7, 0, 21, 5, SCRATCH, 3, 12, SCRATCH, 1, 20, 6], lengths, dtype, first))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [2, 15, 16, 17, 31, 32, 33, 64, 97])
def test_one_row_around_every_chunk_border(length: int, dtype: torch.dtype) -> None:
    check(Case(128, [4], [length], dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_starts_with_one_token_a_row(dtype: torch.dtype) -> None:
    check(Case(128, [4, 9, SCRATCH], [1, 1, 1], dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spare", [0, 3, 40])
def test_padding_of_a_pass(spare: int, dtype: torch.dtype) -> None:
    """Spare tokens belong to no row, and spare rows have the scratch slot and no tokens; as many rows as tokens is no sign of decoding."""
    check(Case(128, [4, 9, 2, *[SCRATCH] * 21], [1, 22, 1, *[0] * 21], dtype, spare=spare))


@pytest.mark.parametrize("dtype", DTYPES)
def test_strong_and_weak_decay(dtype: torch.dtype) -> None:
    """The extremes of the decay, over several chunks: exp(-0.606531) a token, and none."""
    case = Case(128, [4, 2], [50, 1], dtype)
    case.vectors["w_up"] = torch.where(torch.rand_like(case.vectors["w_up"]) < 0.5, 20.0, -20.0).half()
    case.vectors["w_up"][:, :32], case.vectors["w_up"][:, 32:64] = 20.0, -20.0
    check(case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[1] * 6, [20, 1, 16, 1, 3, 40]])
def test_a_row_does_not_depend_on_its_neighbours(lengths: list[int], dtype: torch.dtype) -> None:
    """NaN in one row leaves the others bit for bit as they were, and its own outputs are NaN."""
    slots = [7, 0, 21, 5, 3, 12]
    case = Case(128, slots, lengths, dtype)
    state = case.state.clone()
    out = case.run()
    after = case.state.clone()
    case.state.copy_(state)
    sick = slice(case.starts[2], case.starts[3])
    case.vectors["k"][sick, 5] = float("nan")
    poisoned = case.run()
    well = torch.ones(case.tokens, dtype=torch.bool, device=DEVICE)
    well[sick] = False
    assert torch.equal(poisoned[well], out[well])
    assert poisoned[sick, :HEAD].isnan().all()
    others = [slot for slot in range(SLOTS) if slot != slots[2]]
    assert torch.equal(case.state[others], after[others])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[1] * 4, [20, 1, 16, 70]])
def test_runs_are_bit_equal(lengths: list[int], dtype: torch.dtype) -> None:
    case = Case(768, [7, 0, 21, 5], lengths, dtype)
    state = case.state.clone()
    out = case.run()
    after = case.state.clone()
    for _ in range(5):
        case.state.copy_(state)
        assert torch.equal(case.run(), out)
        assert torch.equal(case.state, after)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_pass_or_token_by_token(dtype: torch.dtype) -> None:
    """Feeding 40 tokens at once, cut in two, or one by one comes to the same within rounding."""
    whole = Case(128, [4], [40], dtype)
    state = whole.state.clone()
    out = whole.run()
    for pieces in ([23, 17], [1] * 40):
        parts, at = [], 0
        piece_state = state.clone()
        for length in pieces:
            piece = Case(128, [4], [length], dtype, decoding=length == 1)
            piece.state, piece.constants = piece_state, whole.constants
            piece.vectors = {name: value[at : at + length].clone() for name, value in whole.vectors.items()}
            piece.v_first = whole.v_first[at : at + length].clone()
            parts.append(piece.run())
            at += length
        tolerance = 3e-3 if dtype == torch.float16 else 1e-3
        assert error(torch.cat(parts), out.double()) < tolerance
        assert error(piece_state[4], whole.state[4].double()) < (3e-3 if dtype == torch.float16 else 2e-5)


def test_many_rows() -> None:
    """More blocks than the card runs at a time, in an order that is not the memory's."""
    rows = SLOTS - 1
    case = Case(4096, torch.randperm(rows).tolist(), [1] * rows, torch.float16, decoding=True)
    check(case)
