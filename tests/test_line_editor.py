"""Editing a line, key by key: whatever way the bytes of the keys are cut."""

import pytest
from hypothesis import given, strategies as st

from terzetto.commands._line_editor import LEFT, Entered, LineEditor

UP, DOWN, RIGHT, LEFTWARDS = (f"\x1b[{key}" for key in "ABCD")


def typed(keys: str, editor: LineEditor | None = None, *, size: int = 10_000) -> list[Entered]:
    editor = editor or LineEditor()
    data = keys.encode("utf-8", "surrogateescape")
    return [line for at in range(0, len(data), size) for line in editor.feed(data[at : at + size])]


@pytest.mark.parametrize("size", [1, 2, 3, 10_000])
@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        ("hello\r", ["hello"]),
        ("one\ntwo\r\nthree", ["one", "two", ""]),
        ("héé\x7f 🎻家\x7f!\r", ["hé 🎻!"]),
        ("\x7f\x08ab\x7f\r", ["a"]),
        ("\x04", [LEFT]),
        ("a\x04\x7f\x04", [LEFT]),
        (f"acd{LEFTWARDS}{LEFTWARDS}b\r", ["abcd"]),
        (f"bc\x01a\x05d{LEFTWARDS * 9}>{RIGHT * 9}<\r", [">abcd<"]),
        ("bc\x1b[Ha\x1b[Fd\x1b[1~>\x1b[4~<\x1bOH(\x1bOF)\r", ["(>abcd<)"]),
        ("abc\x02\x02\x04\x1b[3~d\x06!\r", ["ad!"]),
        ("one two\x17three\x15four\r", ["four"]),
        ("one two  \x17\x17\x17x\r", ["x"]),
        ("cut here\x01\x06\x06\x06\x0b\r", ["cut"]),
        ("a\tb\r", ["a b"]),
        ("one\x1b\rtwo\r", ["one\ntwo"]),
        ("\x1b[200~one\rtwo\n\tx\x03\x1b[31m\x1b[201~!\r", ["one\ntwo\n\tx!"]),
        ("\x1b[5~\x1b[15~\x1bOP\x1bx\x00\x0c\x1b[1;5Cok\r", ["ok"]),
        (f"one\rtwo\r{UP}\r{UP}{UP}\r{UP}{UP}{UP}{UP}\r", ["one", "two", "two", "one", "one"]),
        (f"one\rdraft{UP}{UP}{DOWN}{DOWN}!\r", ["one", "draft!"]),
        (f"{UP}{DOWN}x\r", ["x"]),
    ],
)
def test_keys_do_what_they_do_elsewhere(keys: str, lines: list[Entered], size: int) -> None:
    assert typed(keys, size=size) == lines


def test_what_is_typed_can_be_seen_and_dropped() -> None:
    editor = LineEditor()
    typed(f"abc{LEFTWARDS}", editor)
    assert (editor.text, editor.cursor) == ("abc", 2)
    editor.clear()
    assert (editor.text, editor.cursor) == ("", 0)
    assert typed("d\r", editor) == ["d"]


@given(st.binary(max_size=60), st.integers(1, 5))
def test_no_bytes_are_too_much_for_it(data: bytes, size: int) -> None:
    """The cursor stays in the line, and what is entered is text."""
    editor = LineEditor()
    for at in range(0, len(data), size):
        entered = editor.feed(data[at : at + size])
        assert all(line is LEFT or isinstance(line, str) for line in entered)
        assert 0 <= editor.cursor <= len(editor.text)
    whole = LineEditor()
    whole.feed(data)
    assert (editor.text, editor.cursor) == (whole.text, whole.cursor)


def test_sequence_without_end_is_given_up() -> None:
    """Its characters become text, and the keys after it work."""
    editor = LineEditor()
    [line] = typed("\x1b[" + "1" * 40 + "\r", editor)
    assert line == "[" + "1" * 40
    assert typed("ok\r", editor) == ["ok"]
