"""A manifest in any state of damage is a reason, not a crash (KRN-3); a file is checked before it is loaded."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from kernels.toolkit import HERE

from albatross_plugin.kernel_loader.load import kernels_folder
from albatross_plugin.kernel_loader.manifest import Entry, add_entries, find_prebuilt, read_manifest, sha256_of


def row(**changed: Any) -> dict[str, Any]:
    return {**asdict(HERE), "path": "file.so", "sha256": "0" * 64, **changed}


def write(root: Path, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (root / "manifest.json").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "cannot be read"),
        ("{not json", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ([], 'no list "kernels"'),
        ("null", 'no list "kernels"'),
        ({"kernels": {}}, 'no list "kernels"'),
        ({"kernels": ["file.so"]}, "entry 1 of manifest.json is no object"),
        ({"kernels": [row(path=None)]}, "entry 1 of manifest.json has no text under 'path'"),
        ({"kernels": [{k: v for k, v in row().items() if k != "path"}]}, "has no text under 'path'"),
        ({"kernels": [row(), row(torch=2.11)]}, "entry 2 of manifest.json has no text under 'torch'"),
        ({"kernels": [row(arch="hopper")]}, "unknown arch 'hopper'"),
        ({"kernels": [row(arch="compute" + "9" * 5000)]}, "unknown arch 'compute9"),
        ({"kernels": [row(arch="sm٩٠")]}, "unknown arch"),
        ({"kernels": [row(path="a\0b.so")]}, "a path that is none"),
        ({"kernels": [row(path="\ud800.so")]}, "a path that is none"),
        ({"kernels": [row(path="../../file.so")]}, "points out of its folder"),
        ({"kernels": [row(path="/usr/lib/file.so")]}, "points out of its folder"),
        ({"kernels": [row(path="C:\\file.pyd")]}, "points out of its folder"),
    ],
)
def test_krn_3_damage_is_a_reason(tmp_path: Path, content: Any, reason: str) -> None:
    write(tmp_path, content)
    _, rejected = read_manifest(tmp_path)
    assert len(rejected) == 1 and reason in rejected[0]
    assert find_prebuilt(HERE, tmp_path).entry is None


def test_krn_3_no_manifest_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) == ([], ["manifest.json is not there"])
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in read_manifest(tmp_path)[1][0]


def test_a_file_that_is_not_the_one_of_the_manifest_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file.so").write_bytes(b"not the same")
    write(tmp_path, {"kernels": [row(path="gone.so"), row(), row(arch="compute80", path="ptx.so")]})
    (tmp_path / "ptx.so").write_bytes(b"fits")
    choice = find_prebuilt(HERE, tmp_path)
    assert choice.entry is None
    reasons = "; ".join(choice.rejected)
    assert "gone.so (sm90): cannot be read: No such file" in reasons
    assert "file.so (sm90): its SHA-256 is" in reasons and "the manifest says 000000000000..." in reasons
    right = Entry(replace(HERE, arch="compute80"), "ptx.so", sha256_of(tmp_path / "ptx.so"))
    add_entries(tmp_path, [right])
    assert find_prebuilt(HERE, tmp_path).entry == right


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside.so"
    outside.write_bytes(b"elsewhere")
    root = tmp_path / "root"
    root.mkdir()
    (root / "file.so").symlink_to(outside)
    write(root, {"kernels": [row(sha256=sha256_of(outside))]})
    choice = find_prebuilt(HERE, root)
    assert choice.entry is None and "points out of its folder" in choice.rejected[0]


def test_rows_are_added_and_replaced(tmp_path: Path) -> None:
    first, second = Entry(HERE, "a.so", "1" * 64), Entry(replace(HERE, arch="sm80"), "b.so", "2" * 64)
    add_entries(tmp_path, [first, second])
    add_entries(tmp_path, [replace(first, sha256="3" * 64)])
    entries, rejected = read_manifest(tmp_path)
    assert rejected == [] and {entry.sha256[0] for entry in entries} == {"2", "3"}
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_the_manifest_that_is_shipped_can_be_read() -> None:
    entries, rejected = read_manifest(kernels_folder())
    assert rejected == []
    assert all((kernels_folder() / entry.path).is_file() for entry in entries)
