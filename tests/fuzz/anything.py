"""Whatever JSON can hold, and what Python makes of JSON that goes a little further."""

from __future__ import annotations

from hypothesis import strategies as st

NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([0, 1, -1, 2**31, 2**63, -(2**63), 10**400, -(10**400)]),
    st.floats(),
    st.sampled_from([1e308, 5e-324, -0.0]),
)
TEXTS = st.one_of(
    st.text(max_size=12), st.sampled_from(["", "text", "json_object", "User", "\x00", "\ud800", "9" * 5000, "1", "-1", "nan"])
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)), max_leaves=8
)


def objects(*names: str) -> st.SearchStrategy[dict[str, object]]:
    """Objects in which any of ``names`` may stand for anything."""
    return st.dictionaries(st.one_of(st.sampled_from(names), TEXTS), ANYTHING, max_size=5)
