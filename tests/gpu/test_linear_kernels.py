"""The products that are kernels of our own (few rows, LoRAs, sparse hidden values) against float64 on the same numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)

from albatross_plugin.model.kernels import ops

NONE, TANH, SIGMOID, RELU_SQUARE = range(4)
GUARD = 64

# Groups as (outputs, inputs, activation): the LoRAs of the official shapes, and sizes that fill no tile.
DOWN_SMALL = [(64, 768, TANH), (64, 768, NONE), (32, 768, NONE), (128, 768, SIGMOID)]
DOWN_MIDDLE = [(96, 2048, TANH), (96, 2048, NONE), (64, 2048, NONE), (256, 2048, SIGMOID)]
UP_MIDDLE = [(2048, 96, NONE), (2048, 96, NONE), (2048, 64, NONE), (2048, 256, NONE)]
DOWN_LARGE = [(128, 4096, TANH), (128, 4096, NONE), (96, 4096, NONE), (480, 4096, SIGMOID)]
UP_LARGE = [(4096, 128, NONE), (4096, 128, NONE), (4096, 96, NONE), (4096, 480, NONE)]
ODD_UP = [(264, 32, TANH), (8, 480, RELU_SQUARE), (1000, 96, NONE)]
ODD_DOWN = [(8, 544, SIGMOID), (40, 512, TANH), (200, 1056, NONE), (72, 800, RELU_SQUARE), (16, 2048, NONE)]


class Products:
    """Groups with random weights and inputs, and outputs that lie between guards."""

    def __init__(
        self, rows: int, groups: Sequence[tuple[int, int, int]], accumulate: bool = False, dtype: torch.dtype = torch.float16
    ) -> None:
        self.activations = [group[2] for group in groups]
        self.accumulate = accumulate
        self.weights = [torch.randn(n, k, device="cuda").div_(k**0.5).half() for n, k, _ in groups]
        self.inputs = [torch.randn(rows, k, device="cuda").half() for _, k, _ in groups]
        self._buffers = [torch.full((rows * n + 2 * GUARD,), torch.nan, device="cuda", dtype=dtype) for n, _, _ in groups]
        self.outputs = [b[GUARD:-GUARD].view(rows, n) for b, (n, _, _) in zip(self._buffers, groups, strict=True)]
        self._before = [torch.randn_like(out) for out in self.outputs]

    def run(self, op: str) -> list[Tensor]:
        for out, before in zip(self.outputs, self._before, strict=True):
            out.copy_(before if self.accumulate else torch.full_like(out, torch.nan))
        getattr(ops(), op)(self.weights, self.inputs, self.outputs, self.activations, self.accumulate)
        for buffer in self._buffers:
            assert buffer[:GUARD].isnan().all() and buffer[-GUARD:].isnan().all()
        return [out.clone() for out in self.outputs]

    def wanted(self) -> list[Tensor]:
        found = []
        for weight, x, activation, before in zip(self.weights, self.inputs, self.activations, self._before, strict=True):
            sums = activate(x.double() @ weight.double().T, activation)
            found.append(sums + before.double() if self.accumulate else sums)
        return found


def activate(x: Tensor, activation: int) -> Tensor:
    if activation == TANH:
        return x.tanh()
    if activation == SIGMOID:
        return x.sigmoid()
    return x.relu().square() if activation == RELU_SQUARE else x


def error(found: Tensor, wanted: Tensor) -> float:
    value = ((found.double() - wanted).norm() / wanted.norm()).item()
    assert value == value, "an element was not written"
    return value


def check(op: str, products: Products) -> None:
    found = products.run(op)
    for i, (out, wanted) in enumerate(zip(found, products.wanted(), strict=True)):
        # Rounding to half alone gives about 2e-4, but for a single number up to 2^-11.
        half_limit = 4e-4 if out.numel() > 64 else 5.2e-4
        assert error(out, wanted) < (half_limit if out.dtype == torch.float16 else 3e-5), f"group {i}"
    again = products.run(op)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


GEMV_CASES = {
    "time mix": [(2048, 2048, NONE)] * 3 + DOWN_MIDDLE,
    "time mix, small": [(768, 768, NONE)] * 3 + DOWN_SMALL,
    "up": UP_MIDDLE,
    "up, large": UP_LARGE,
    "key": [(8192, 2048, RELU_SQUARE)],
    "odd": [(1, 8, NONE), (7, 32, TANH), (33, 72, SIGMOID), (17, 2056, NONE), (100, 488, RELU_SQUARE), (16, 64, NONE), (5, 136, NONE)],
    "many": [(20001, 1000, NONE)],
}


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("case", GEMV_CASES)
def test_gemv(case: str, rows: int) -> None:
    check("gemv", Products(rows, GEMV_CASES[case]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("rows", "shape"), [(1, (2048, 2048)), (1, (768, 768)), (3, (4096, 4096)), (7, (77, 104)), (8, (1000, 96))])
def test_gemv_adds(rows: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
    check("gemv", Products(rows, [(*shape, NONE)], accumulate=True, dtype=dtype))


def test_gemv_of_the_head() -> None:
    check("gemv", Products(1, [(65536, 2048, NONE)], dtype=torch.float32))


def test_a_row_of_gemv_does_not_depend_on_its_neighbours() -> None:
    groups = [(768, 768, NONE), (100, 2048, TANH), (264, 96, NONE)]
    products = Products(8, groups)
    together = products.run("gemv")
    for row in range(8):
        alone = Products(1, groups)
        alone.weights, alone.inputs = products.weights, [x[row : row + 1].contiguous() for x in products.inputs]
        for one, all_rows in zip(alone.run("gemv"), together, strict=True):
            assert torch.equal(one[0], all_rows[row])


@pytest.mark.parametrize("op", ["gemv", "grouped_gemm"])
@pytest.mark.parametrize("groups", [DOWN_SMALL, UP_MIDDLE, [(64, 768, RELU_SQUARE)]], ids=["down", "up", "square"])
def test_what_is_not_a_number_stays_in_its_row(op: str, groups: list[tuple[int, int, int]]) -> None:
    products = Products(6, groups)
    for x in products.inputs:
        x[2, 17] = torch.nan
    for out, wanted in zip(products.run(op), products.wanted(), strict=True):
        assert out[2].isnan().all()
        kept = [0, 1, 3, 4, 5]
        assert error(out[kept], wanted[kept]) < 4e-4


GEMM_CASES = {
    "down 0.1b": DOWN_SMALL,
    "down 1.5b": DOWN_MIDDLE,
    "up 1.5b": UP_MIDDLE,
    "down 7.2b": DOWN_LARGE,
    "up 7.2b": UP_LARGE,
    "odd up": ODD_UP,
    "odd down": ODD_DOWN,
}


@pytest.mark.parametrize("rows", [1, 9, 32, 65, 128, 320, 333, 960, 2049])
@pytest.mark.parametrize("case", GEMM_CASES)
def test_grouped_gemm(case: str, rows: int) -> None:
    check("grouped_gemm", Products(rows, GEMM_CASES[case]))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("inputs", [96, 768])
@pytest.mark.parametrize("rows", [30, 100, 700])
def test_grouped_gemm_adds_and_writes_floats(rows: int, inputs: int, dtype: torch.dtype, accumulate: bool) -> None:
    check("grouped_gemm", Products(rows, [(264, inputs, NONE), (32, inputs, NONE)], accumulate=accumulate, dtype=dtype))


def hidden(rows: int, inputs: int, density: float) -> Tensor:
    """Squares of which about 1 - density are zero, some of them minus zero."""
    h = torch.randn(rows, inputs, device="cuda").square_()
    h[torch.rand(rows, inputs, device="cuda") >= density] = 0.0
    h[(h == 0.0) & (torch.rand(rows, inputs, device="cuda") < 0.5)] = -0.0
    return h.half()


class Sparse:
    """One product x += h . weight and its scratch memory."""

    def __init__(self, rows: int, inputs: int, outputs: int, density: float) -> None:
        self.h = hidden(rows, inputs, density)
        self.weight = torch.randn(inputs, outputs, device="cuda").div_((inputs * density + 1) ** 0.5).half()
        self.before = torch.randn(rows, outputs, device="cuda").half()
        self.partial = torch.full((ops().sparse_partials(rows, inputs, outputs),), torch.nan, device="cuda")
        self.counters = torch.zeros(outputs // 64, dtype=torch.int32, device="cuda")

    def run(self) -> Tensor:
        x = self.before.clone()
        ops().sparse_linear(self.h, self.weight, x, self.partial, self.counters)
        assert not self.counters.any()
        return x

    def wanted(self) -> Tensor:
        return self.before.double() + self.h.double() @ self.weight.double()


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("density", [0.0, 0.12, 1.0])
@pytest.mark.parametrize("shape", [(3072, 768), (8192, 2048), (10240, 2560), (16384, 4096), (520, 64), (20000, 192), (8, 8256)])
def test_sparse_linear(shape: tuple[int, int], density: float, rows: int) -> None:
    sparse = Sparse(rows, *shape, density)
    found = sparse.run()
    assert error(found, sparse.wanted()) < 4e-4
    for _ in range(20):
        assert torch.equal(sparse.run(), found)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_sparse_linear_reads_only_what_counts(rows: int) -> None:
    sparse = Sparse(rows, 8192, 2048, 0.12)
    wanted = sparse.wanted()
    sparse.weight[(sparse.h == 0.0).all(0)] = torch.nan
    assert error(sparse.run(), wanted) < 4e-4


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_sparse_linear_hides_no_bad_value(rows: int, bad: float) -> None:
    sparse = Sparse(rows, 3072, 768, 0.12)
    wanted = sparse.wanted()
    sparse.h[0, 1234] = bad
    found = sparse.run()
    assert not found[0].isfinite().any()
    if rows > 1:
        assert error(found[1:], wanted[1:]) < 4e-4
