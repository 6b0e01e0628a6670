"""What every step makes, built quickly, is what the constructors make."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from attrs import fields
from hypothesis import given, strategies as st

from terzetto.vocabulary import (
    AssistantChunk,
    AssistantMessage,
    AssistantMessageEvent,
    MessageId,
    ModelSource,
    TextBlock,
    TextDelta,
    Usage,
    new_message_id,
)
from terzetto.vocabulary._quick import answer_event, assistant_chunk

numbers = st.integers(0, 2**40)
texts = st.text(st.characters(), max_size=6)
ids = texts.map(MessageId)


def same(one: object, other: object) -> None:
    """Equal, of the very same classes, as immutable, and as large."""
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)
    assert type(one) is type(other)
    assert sys.getsizeof(one) == sys.getsizeof(other)
    for attribute in fields(type(one)):
        with pytest.raises(AttributeError):
            setattr(one, attribute.name, None)


@given(numbers, numbers, texts)
def test_a_chunk(turn: int, step: int, text: str) -> None:
    chunk = TextDelta(0, text)
    same(assistant_chunk(turn, step, chunk), AssistantChunk(turn, step, chunk))


@given(
    numbers,
    numbers,
    texts,
    ids,
    st.none() | st.builds(Usage, input_tokens=numbers, output_tokens=numbers),
    st.booleans(),
)
def test_an_answer(
    turn: int, step: int, text: str, message_id: MessageId, usage: Usage | None, cut: bool
) -> None:
    content, source = (TextBlock(text),), ModelSource("p", "m")
    made = answer_event(turn, step, content, source, message_id, usage, cut)
    message = AssistantMessage(content, source, message_id)
    same(made, AssistantMessageEvent(turn, step, message, usage, cut))
    same(made.message, message)


def test_ids_are_new_and_of_one_form() -> None:
    found = [new_message_id() for _ in range(1000)]
    assert len(set(found)) == 1000
    assert all(len(one) == 24 and set(one) <= set("0123456789abcdef") for one in found)


FORKED = """
import os
from terzetto.vocabulary import new_message_id
new_message_id()
child = os.fork()
mine = " ".join(new_message_id() for _ in range(100))
os.write(1, (mine + "\\n").encode())
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_gives_none_of_the_ids_of_its_parent() -> None:
    shown = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, check=True)
    ids = shown.stdout.decode().split()
    assert len(ids) == len(set(ids)) == 200
