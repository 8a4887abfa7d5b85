"""Tables of text: alignment, and columns without values."""

from __future__ import annotations

from triton_sam._common.columns import aligned, without_empty_columns

HEAD = ("name", "rate", "n", "limit")
ROWS = [("a", "", "3", "-"), ("longer", "", "12", "")]


def test_columns_without_a_value_in_any_row_are_left_out() -> None:
    assert aligned(HEAD, ROWS, right=(1, 2, 3)).splitlines() == ["name     n", "a        3", "longer  12"]
    assert without_empty_columns(HEAD, ROWS) == (["name", "n"], [["a", "3"], ["longer", "12"]])


def test_one_value_keeps_a_column_with_its_gaps() -> None:
    rows = [*ROWS, ("b", "", "", "0.5")]
    assert aligned(HEAD, rows, right=(2,)).splitlines() == [
        "name     n  limit",
        "a        3  -",
        "longer  12",
        "b           0.5",
    ]


def test_a_table_without_rows_keeps_its_titles() -> None:
    assert aligned(HEAD, []) == "name  rate  n  limit"
    assert without_empty_columns(HEAD, []) == (list(HEAD), [])
