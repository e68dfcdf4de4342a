"""docs/cases.md: a row for every case, and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from docs.pages import ROOT, rows

GROUPS = {
    "STR": (1, 3), "LOD": (1, 2), "KRN": (1, 2, 3, 6), "TOK": (1, 3, 5), "SMP": (1, 3, 5, 6), "SCH": (1, 2, 4, 6), "API": (1, 2, 3),
    "ABT": (1, 3), "MEM": (1, 3), "PLG": (1, 3), "SEC": (1, 3), "UI": (1, 3),
}  # fmt: skip
CASES = [f"{group}-{number}" for group, numbers in GROUPS.items() for number in numbers]
FAULTS = [f"R{number}" for number in range(1, 34)]
TABLE = [*rows("docs/cases.md", "case"), *rows("docs/cases.md", "fault")]


@cache
def names_in(file: str) -> set[str]:
    """Names of the test functions in a file under tests/."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_case_has_its_row() -> None:
    assert [row[0] for row in TABLE] == CASES + FAULTS


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_a_row_says_what_is_right_and_names_tests_that_exist(row: list[str]) -> None:
    _, right, cell = row
    assert right.endswith(".")
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", cell)
    assert named and len(named) == len(cell.split("<br>"))
    for file, name in named:
        assert name in names_in(file), f"{file} has no {name}"


def test_no_test_carries_a_case_that_is_not_listed() -> None:
    known = {case.lower().replace("-", "_") for case in CASES} | {fault.lower() for fault in FAULTS}
    words = re.compile(r"_((?:" + "|".join(group.lower() for group in GROUPS) + r")_\d+|r\d+)(?=_)")
    found = {
        (path.name, case)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in names_in(path.relative_to(ROOT / "tests").as_posix())
        for case in words.findall(name)
    }
    assert len(found) > 50
    assert {case for _, case in found} <= known, sorted(found)
