"""The text of an error and its causes."""

from __future__ import annotations

import errno
import os

from terzetto.vocabulary import StoreError, chain_text


def caused(text: str, cause: Exception) -> Exception:
    error = StoreError(text)
    error.__cause__ = cause
    return error


def test_what_the_system_said_is_said_once() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    told = f"session 'a': writing failed: {full.strerror}"
    assert chain_text(caused(told, full)) == told
    assert chain_text(caused("writing failed", full)) == f"writing failed: {full}"


def test_a_file_that_is_named_is_news() -> None:
    gone = FileNotFoundError(errno.ENOENT, "No such file or directory", "sessions/a.jsonl")
    text = chain_text(caused("opening failed: No such file or directory", gone))
    assert text.endswith("'sessions/a.jsonl'")


def test_an_error_of_the_system_without_words_gives_its_type() -> None:
    assert chain_text(caused("writing failed", OSError())) == "writing failed: OSError"
    assert chain_text(caused("writing failed", OSError(5, ""))) == "writing failed: [Errno 5] "
