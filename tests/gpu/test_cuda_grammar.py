"""Masks of grammars on the card: they hold in captured steps, and free rows beside them say what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tiny

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)

from gpu.card import worker_spec
from gpu.grammar_rows import bound_among_free, many_bound

from albatross_plugin.model.cuda_executor import CudaExecutor

SCRIPT = [34, 1097, 47, 40640, 11, 300, 17, 999]


def nothing(loaded: int, total: int) -> None:
    pass


@pytest.mark.parametrize("graphs", [True, False])
def test_masks_hold_in_steps_that_free_rows_share(tmp_path: Path, graphs: bool) -> None:
    path = tiny.write(tmp_path / "script.pth", tiny.script_checkpoint(SCRIPT))
    executor = CudaExecutor(worker_spec(path, 8, graphs=graphs), nothing)
    try:
        bound_among_free(executor, SCRIPT, 65536)
    finally:
        executor.close()


def test_more_masks_than_go_to_the_card_in_one_piece(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "random.pth", tiny.random_checkpoint(2, 128))
    executor = CudaExecutor(worker_spec(path, 80), nothing)
    try:
        many_bound(executor, 65536, 80)
    finally:
        executor.close()
