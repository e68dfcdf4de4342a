"""The elementwise stages between products against float64: embed, mix and commit, layer_norm, relu_square."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import Tensor

from albatross_plugin.model.kernels import ops

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)

DEVICE = "cuda"
EPS = 1e-5
WIDTHS = [64, 128, 768, 2048, 2560, 4096, 8192]


def halfs(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale + shift).half()


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def poison(*shape: int) -> Tensor:
    return torch.full(shape, float("nan"), dtype=torch.float16, device=DEVICE)


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def normal(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return F.layer_norm(x.double(), (x.shape[-1],), gamma.double(), beta.double(), EPS)


def blends(xn: Tensor, previous: Tensor, mu: Tensor) -> Tensor:
    return xn + (previous - xn) * mu.double()[:, None]


@pytest.mark.parametrize("mixes", [1, 6])
@pytest.mark.parametrize("width", WIDTHS)
def test_mix_of_one_token_a_row(width: int, mixes: int) -> None:
    slots = [5, 2, 9, 0, 7]
    x, gamma, beta = halfs(5, width, scale=3.0, shift=2.0), halfs(width, shift=1.0), halfs(width)
    mu, shift, out = torch.rand(mixes, width, device=DEVICE).half(), halfs(11, width), poison(mixes, 5, width)
    old = shift.clone()
    ops().mix(x, gamma, beta, mu, shift, ints(slots), None, None, None, out, EPS)
    xn = normal(x, gamma, beta)
    assert error(out, blends(xn, old[slots].double(), mu)) < 1e-3
    assert error(shift[slots], xn) < 1e-3
    kept = [slot for slot in range(11) if slot not in slots]
    assert torch.equal(shift[kept], old[kept])


@pytest.mark.parametrize("mixes", [1, 6])
@pytest.mark.parametrize("width", WIDTHS)
def test_mix_of_rows_of_any_length(width: int, mixes: int) -> None:
    slots, lengths = [5, 2, 9, 0, 7], [1, 7, 2, 33, 1]
    starts, token_row = [0], []
    for row, length in enumerate(lengths):
        starts.append(starts[-1] + length)
        token_row += [row] * length
    tokens = starts[-1]
    x, gamma, beta = halfs(tokens, width, scale=3.0, shift=2.0), halfs(width, shift=1.0), halfs(width)
    mu, shift = torch.rand(mixes, width, device=DEVICE).half(), halfs(11, width)
    out, tail, old = poison(mixes, tokens, width), poison(5, width), shift.clone()
    ops().mix(x, gamma, beta, mu, shift, ints(slots), ints(starts), ints(token_row), tail, out, EPS)
    xn = normal(x, gamma, beta)
    previous = torch.cat((xn[:1], xn[:-1]))
    previous[starts[:-1]] = old[slots].double()
    assert error(out, blends(xn, previous, mu)) < 1e-3
    assert torch.equal(shift, old)
    assert error(tail, xn[[end - 1 for end in starts[1:]]]) < 1e-3
    ops().commit(tail, ints(slots), shift)
    assert torch.equal(shift[slots], tail)
    kept = [slot for slot in range(11) if slot not in slots]
    assert torch.equal(shift[kept], old[kept])


@pytest.mark.parametrize("width", [128, 2048])
def test_padding_of_a_pass_disturbs_nobody(width: int) -> None:
    """Spare tokens name row 0, which they are not of; spare rows have no tokens, and their tail stays as it is."""
    x, gamma, beta, mu = halfs(9, width), halfs(width, shift=1.0), halfs(width), torch.rand(6, width, device=DEVICE).half()
    shift, tail, out = halfs(4, width), poison(3, width), poison(6, 9, width)
    ops().mix(x, gamma, beta, mu, shift, ints([2, 0, 3]), ints([0, 1, 6, 6]), ints([0, 1, 1, 1, 1, 1, 0, 0, 0]), tail, out, EPS)
    xn = normal(x[:6], gamma, beta)
    previous = torch.cat((shift[[2, 0]].double(), xn[1:-1]))
    assert error(out[:, :6], blends(xn, previous, mu)) < 1e-3
    assert error(tail[:2], xn[[0, 5]]) < 1e-3
    assert tail[2].isnan().all()


@pytest.mark.parametrize("width", [128, 2048, 4096])
def test_mix_at_once_or_token_by_token_is_bit_equal(width: int) -> None:
    """The token before is normalised a second time when many tokens come at once: that must not make a difference."""
    tokens = 6
    x, gamma, beta, mu = halfs(tokens, width), halfs(width, shift=1.0), halfs(width), torch.rand(6, width, device=DEVICE).half()
    shift = halfs(3, width)
    other = shift.clone()
    out, tail = poison(6, tokens, width), poison(1, width)
    ops().mix(x, gamma, beta, mu, shift, ints([1]), ints([0, tokens]), ints([0] * tokens), tail, out, EPS)
    ops().commit(tail, ints([1]), shift)
    for token in range(tokens):
        one = poison(6, 1, width)
        ops().mix(x[token : token + 1], gamma, beta, mu, other, ints([1]), None, None, None, one, EPS)
        assert torch.equal(one[:, 0], out[:, token])
    assert torch.equal(shift, other)


def test_mix_keeps_nan_to_its_row() -> None:
    width, slots = 768, [3, 0, 1]
    x, gamma, beta, mu = halfs(3, width), halfs(width), halfs(width), torch.rand(6, width, device=DEVICE).half()
    shift, out = halfs(4, width), poison(6, 3, width)
    x[1, 100] = float("nan")
    ops().mix(x, gamma, beta, mu, shift, ints(slots), None, None, None, out, EPS)
    assert out[:, 1].isnan().all() and shift[0].isnan().all()
    assert out[:, [0, 2]].isfinite().all() and shift[[1, 2, 3]].isfinite().all()


@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm(width: int) -> None:
    x, gamma, beta = halfs(9, width, scale=3.0, shift=-20.0), halfs(width, shift=1.0), halfs(width)
    out = poison(9, width)
    ops().layer_norm(x, None, gamma, beta, out, EPS)
    assert error(out, normal(x, gamma, beta)) < 1e-3
    index, out = [8, 0, 3, 3], poison(4, width)
    ops().layer_norm(x, ints(index), gamma, beta, out, EPS)
    assert error(out, normal(x[index], gamma, beta)) < 1e-3


@pytest.mark.parametrize("width", WIDTHS)
def test_embed(width: int) -> None:
    vocab = 300
    table, last = halfs(vocab, width), ints([17, 299, 4, 1000])
    ids, x = ints([0, 299, 300, 123456, -1, -2, -3, -4, 5]), poison(9, width)
    ops().embed(table, ids, last, x)
    assert torch.equal(x, table[[0, 299, 0, 0, 17, 299, 4, 0, 5]])


@pytest.mark.parametrize("rows,width", [(1, 8), (3, 3072), (37, 8192)])
def test_relu_square(rows: int, width: int) -> None:
    h = halfs(rows, width, scale=3.0)
    h[0, 1], h[0, 2], h[0, 3], h[0, 4], h[-1, -1] = float("nan"), float("inf"), float("-inf"), 300.0, -0.0
    wanted = torch.where(h < 0, torch.zeros_like(h), (h.float() * h.float()).half())
    ops().relu_square(h)
    assert torch.equal(h.nan_to_num(nan=-1.0), wanted.nan_to_num(nan=-1.0))
    assert h[0, 1].isnan() and h[0, 4] == float("inf")
