"""Masks of grammars in the CUDA engine's captured steps, on a pretended card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gpu.grammar_rows import bound_among_free, many_bound
from model.plans import SCRIPT, VOCAB
from model.pretended_card import Card

from albatross_plugin.model.cuda_executor import CudaExecutor
from albatross_plugin.model.cuda_sampler import MASKS_PER_UPLOAD

Make = Callable[..., CudaExecutor]


@pytest.mark.parametrize("graphs", [True, False])
def test_masks_hold_in_steps_that_free_rows_share(script: Path, make: Make, card: Card, graphs: bool) -> None:
    bound_among_free(make(script, 8, graphs=graphs), SCRIPT, VOCAB)


def test_more_masks_than_go_to_the_card_in_one_piece(random_model: Path, make: Make) -> None:
    many_bound(make(random_model, MASKS_PER_UPLOAD + 8), VOCAB, MASKS_PER_UPLOAD + 8)
