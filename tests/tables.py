"""Tables of the documentation, read as data."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def table(page: str, section: str) -> dict[str, dict[str, str]]:
    """The first table under the heading *section* of *page*: its rows by their first cell.

    Every row holds the other cells by the heads of their columns, without back-quotes.
    """
    text = (DOCS / page).read_text("utf-8")
    _, found, rest = text.partition(f"\n## {section}\n")
    assert found, f"{page} has no section {section!r}"
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip().replace("`", "") for cell in line[1:-1].split("|")] for line in lines]
    heads, _, *rows = cells
    for row in rows:
        assert len(row) == len(heads), row
    found_rows = {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in rows}
    assert len(found_rows) == len(rows), "two rows have one name"
    return found_rows
