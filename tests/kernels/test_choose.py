"""Which prebuilt file is taken (REQ-77, REQ-78): a table of contexts and entries, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernels.toolkit import HERE

from albatross_plugin.errors import DeviceError
from albatross_plugin.kernel_loader.context import FIELDS, arch_of, context_for, platform_tag, python_abi, torch_facts
from albatross_plugin.kernel_loader.manifest import Entry, choose


def entry(**changed: str) -> Entry:
    context = replace(HERE, **changed)
    return Entry(context, f"prebuilt/{context.arch}/file.so", "0" * 64)


@pytest.mark.parametrize(
    ("archs", "card", "forced", "taken"),
    [
        (["sm90"], "sm90", None, "sm90"),
        (["sm80", "sm86", "sm89", "sm90"], "sm86", None, "sm86"),
        (["compute90", "sm90"], "sm90", None, "sm90"),
        (["compute80", "compute90"], "sm90", None, "compute90"),
        (["compute80", "compute90"], "sm89", None, "compute80"),
        (["compute80"], "sm120", None, "compute80"),
        (["compute90"], "sm100", None, "compute90"),
        (["compute100"], "sm90", None, None),
        (["sm80"], "sm86", None, None),
        (["sm120"], "sm90", None, None),
        ([], "sm90", None, None),
        (["sm90", "compute80"], "sm90", "compute80", "compute80"),
        (["sm90", "compute80"], "sm90", "sm86", None),
        (["sm86"], "sm90", "sm86", "sm86"),
        (["compute120"], "sm90", "compute120", "compute120"),
    ],
)
def test_req_78_exact_first_then_the_newest_ptx_that_fits(archs: list[str], card: str, forced: str | None, taken: str | None) -> None:
    entries = [entry(arch=arch) for arch in archs]
    choice = choose(replace(HERE, arch=card), entries, forced)
    assert (choice.entry.context.arch if choice.entry else None) == taken
    assert len(choice.rejected) == len(entries) - (taken is not None)


@pytest.mark.parametrize("field", [field for field in FIELDS if field != "arch"])
def test_req_78_every_field_counts_and_is_named(field: str) -> None:
    choice = choose(HERE, [entry(**{field: "other"})])
    assert choice.entry is None
    assert choice.rejected == (f"prebuilt/sm90/file.so (sm90): {field} other, here {getattr(HERE, field)}",)


def test_reasons_name_everything_that_differs() -> None:
    (reason,) = choose(HERE, [entry(torch="2.7.1+cu128", cuda="12.8", arch="compute100")]).rejected
    assert "torch 2.7.1+cu128, here 2.11.0+cu130" in reason and "cuda 12.8, here 13.0" in reason
    assert "compute100 is newer than this card, sm90" in reason
    (reason,) = choose(HERE, [entry()], "sm80").rejected
    assert "ALBATROSS_KERNEL_ARCH asks for sm80" in reason
    assert choose(HERE, [entry(), entry(arch="compute80")]).rejected[0].endswith("fits better")


@pytest.mark.parametrize(
    ("text", "arch"),
    [("sm90", "sm90"), ("SM_90", "sm90"), (" 9.0 ", "sm90"), ("12.0", "sm120"), ("compute_80", "compute80"), ("120", "sm120")],
)
def test_architectures_are_read_as_people_write_them(text: str, arch: str) -> None:
    assert arch_of(text) == arch


@pytest.mark.parametrize("text", ["sm70", "6.1", "compute52"])
def test_an_architecture_that_is_too_old_is_told_apart(text: str) -> None:
    with pytest.raises(DeviceError, match="too old: the kernels need compute capability 7.5"):
        arch_of(text)


@pytest.mark.parametrize("text", ["", "foo", "sm", "90a", "9", "Hopper", "sm80,sm90", "compute", "sm9.01", "8.0+PTX"])
def test_an_architecture_that_is_none_is_refused_with_examples(text: str) -> None:
    with pytest.raises(DeviceError, match=r"names no architecture.*sm80, sm90 or compute80"):
        arch_of(text)


def test_req_77_context_of_this_process() -> None:
    pytest.importorskip("torch")
    context = context_for(torch_facts(), "sm90")
    assert context.python_abi == python_abi() and context.python_abi.startswith("cp3")
    assert context.platform == platform_tag() and "-" not in context.platform
    assert context.torch.startswith("2.") and context.name == "rwkv7_state_fwd_fp16"
