"""``terzetto verify``: what it finds, what it cannot, and what it never cries wolf at (C148)."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from attrs import evolve
from hypothesis import HealthCheck, given, settings, strategies as st

from terzetto import vocabulary as v
from terzetto.commands._checks import check
from terzetto.commands._stored import Stored, read_log_file
from terzetto.session._codec import decode_header, loads_event, loads_json
from tests.commands import in_process, linux_like
from tests.session.oracle import Log, recorded
from tests.stored import KINDS, lines, place, store_at, talk
from tests.strategies_logs import legal_logs, mutated_logs

pytestmark = linux_like
Capture = pytest.CaptureFixture[str]
HEADER = v.SessionHeader(id=v.SessionId("a"), created_ms=1)


@cache
def log() -> tuple[v.SessionHeader, tuple[v.Event, ...], bytes]:
    """A session as an engine wrote it: its header, events, and file."""
    with TemporaryDirectory() as folder:
        trio.run(talk, Path(folder), "a")
        data = (Path(folder) / "a.jsonl").read_bytes()
    first, *rest = data.splitlines()
    events = tuple(loads_event(line, seq_hint=seq) for seq, line in enumerate(rest))
    return decode_header(loads_json(first)), events, data


def looked_at(data: bytes, name: str = "a") -> Stored:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.jsonl"
        path.write_bytes(data)
        return read_log_file(path)


def problems(data: bytes, *extensions: str) -> list[str]:
    found = check(looked_at(data), extensions).findings
    return [f"{one.where}: {one.what}" for one in found if one.problem]


def notes(data: bytes) -> list[str]:
    return [one.what for one in check(looked_at(data)).findings if not one.problem]


# --- nothing is wrong -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_engine_wrote_is_whole(kind: str, tmp_path: Path, capsys: Capture) -> None:
    path = place(tmp_path, kind)
    trio.run(talk, path, "a")
    trio.run(talk, path, "B")
    events = sum(len(trio.run(store_at(path).read, name)[1]) for name in ("a", "B"))
    for words in ([], ["--all"], ["a", "B"]):
        code, out, err = in_process(capsys, "verify", *words, "--log", str(path))
        assert (code, out, err) == (0, f"2 sessions, {events} events, 0 problems\n", "")
    code, out, _ = in_process(capsys, "verify", "a", "--log", str(path))
    assert out == f"1 session, {events // 2} events, 0 problems\n"
    assert in_process(capsys, "verify", "a", "--all", "--log", str(path))[0] == 2
    assert in_process(capsys, "verify", "nobody", "--log", str(path))[0] == 1


@pytest.mark.parametrize("name", sorted(recorded()))
def test_recorded_logs_have_no_problem(name: str) -> None:
    assert problems(lines(HEADER, recorded()[name])) == []


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(legal_logs(), st.data())
def test_the_beginning_of_a_legal_log_is_legal(events: Log, data: st.DataObject) -> None:
    """A log that stops between two records is a log: an open turn is worth a note."""
    stop = data.draw(st.integers(0, len(events)))
    found = [p for p in problems(lines(HEADER, events[:stop]), *_names(events)) if _of_order(p)]
    assert found == []


def _names(events: Sequence[v.Event]) -> set[str]:
    return {event.data.name for event in events if isinstance(event.data, v.Extension)}


def _of_order(problem: str) -> bool:
    """Made-up answers are not what was streamed; all else about them is right."""
    return "is not what was" not in problem


# --- something is wrong ---------------------------------------------------------------------


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(mutated_logs())
def test_a_log_that_no_store_would_replay_is_found(events: list[v.Event]) -> None:
    """What `replay` refuses, verify reports; and its report never fails itself."""
    from terzetto.session import Session, replay

    session = Session(HEADER, lambda: 0)
    try:
        replay(session, events)
        refused = None
    except v.IllegalEvent as error:
        refused = error.seq
    found = problems(lines(HEADER, events), *_names(events))
    if refused is not None:
        assert found


def shape(events: Sequence[v.Event]) -> list[tuple[object, ...]]:
    """What the order of a log is made of: all but the words and numbers in its payloads."""
    return [(type(e.data), e.seq, e.surface_op, e.sources) for e in events]


def changes() -> list[tuple[int, int]]:
    """Places all over the log, and what is put there."""
    _, _, data = log()
    replacements = b'"}\x00\xffz0,\n'
    return [
        (at, replacements[at % len(replacements)])
        for at in range(0, len(data), 3)
        if data[at] != replacements[at % len(replacements)]
    ]


@pytest.mark.parametrize("part", range(4))
def test_a_changed_byte_is_found_or_changes_nothing_but_one_value(part: int) -> None:
    """C148: any byte of the log. A log of lines has no checksum: a letter of a text that is
    said only once is what cannot be found, and it is one value in one event then."""
    header, events, data = log()
    silent = 0
    for at, byte in changes()[part::4]:
        changed = data[:at] + bytes([byte]) + data[at + 1 :]
        if problems(changed):
            continue
        stored = looked_at(changed)
        got = [loads_event(line, seq_hint=seq) for seq, line in enumerate(stored.records)]
        assert shape(got) == shape(events)
        head = decode_header(loads_json(stored.header))
        different = [
            n for n, pair in enumerate(zip(got, events, strict=True)) if pair[0] != pair[1]
        ]
        assert len(different) + (head != header) <= 1
        silent += bool(different)
        for n in different:
            assert not isinstance(events[n].data, v.AssistantMessageEvent) or (
                got[n].data.message.content == events[n].data.message.content  # type: ignore[union-attr]
            )
    assert silent < len(changes()) / 4 / 3


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_changed_byte_by_any_value(data: st.DataObject) -> None:
    """As above, with values that a list would not think of."""
    _, events, whole = log()
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    if not problems(changed):
        records = looked_at(changed).records
        got = [loads_event(line, seq_hint=seq) for seq, line in enumerate(records)]
        assert shape(got) == shape(events)


def test_every_truncation_is_torn_or_a_shorter_log() -> None:
    """C148: cut inside a record it is torn; at the end of one, a log that an open turn ends."""
    _, events, data = log()
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10]
    near = [end + by for end in ends for by in (-2, -1, 0, 1)]
    for stop in sorted({*range(ends[0]), *near, *range(ends[-4], len(data))} - {len(data) + 1}):
        found = problems(data[:stop])
        if stop < ends[0]:
            assert found == ["line 1, byte 0: its creation was not finished"]
        elif stop in ends:
            assert found == []
            place = len([e for e in events[: ends.index(stop)] if isinstance(e.data, v.TurnStart)])
            done = len([e for e in events[: ends.index(stop)] if isinstance(e.data, v.TurnEnd)])
            assert any("is open" in note for note in notes(data[:stop])) == (place != done)
        else:
            torn = stop - max(end for end in ends if end < stop)
            assert found == [
                f"end: torn: {torn} bytes of an unfinished record; the next resume cuts them off"
            ]


def edited(at: int, data: v.EventData) -> bytes:
    header, events, _ = log()
    return lines(header, [*events[:at], evolve(events[at], data=data), *events[at + 1 :]])


def of_type(kind: type) -> v.Event:
    return next(event for event in log()[1] if isinstance(event.data, kind))


def test_an_answer_that_is_not_what_was_streamed() -> None:
    event = of_type(v.AssistantMessageEvent)
    answer = event.data
    assert isinstance(answer, v.AssistantMessageEvent)
    think, _, call = answer.message.content
    message = evolve(answer.message, content=(think, v.TextBlock("Let me sea."), call))
    [found] = problems(edited(event.seq, evolve(answer, message=message)))
    assert found.startswith(f"line {event.seq + 2}, byte ")


def test_a_call_that_is_not_what_was_asked_for() -> None:
    event = of_type(v.ToolCallEvent)
    assert isinstance(event.data, v.ToolCallEvent)
    [found] = problems(edited(event.seq, evolve(event.data, arguments='{"at": "there"}')))
    assert f"call {event.seq} is not what was asked for" in found


def test_a_clock_that_went_back() -> None:
    header, events, _ = log()
    changed = [*events[:5], evolve(events[5], time_ms=1), *events[6:]]
    assert any("event 5 is older" in found for found in problems(lines(header, changed)))


def test_records_that_are_missing_doubled_or_swapped() -> None:
    _, _, data = log()
    records = data.splitlines(keepends=True)
    for changed in (
        records[:4] + records[5:],
        records[:4] + records[3:],
        [*records[:3], records[4], records[3], *records[5:]],
    ):
        assert any("comes next" in found for found in problems(b"".join(changed)))
    many = b"".join(records[:2] + [b"{}\n"] * 30 + records[2:])
    assert len(problems(many)) > 10


def test_not_more_is_told_of_one_session_than_can_be_read(tmp_path: Path, capsys: Capture) -> None:
    records = log()[2].splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_bytes(b"".join(records[:2] + [b"{}\n"] * 30 + records[2:]))
    code, out, _ = in_process(capsys, "verify", "--log", str(tmp_path))
    assert code == 1
    told = out.splitlines()
    assert len(told) == 12
    assert told[10].startswith("a: and ")
    assert told[11].endswith(" problems")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((b'Version":1', b'Version":3'), "header: written by a newer terzetto"),
        ((b'"id":"a"', b'"id":"b"'), "the log of session 'b' in this place"),
        ((b'"createdMs"', b'"created"'), "header: "),
        ((b'{"formatVersion"', b'{"version"'), "header: "),
    ],
)
def test_a_header_that_is_wrong(change: tuple[bytes, bytes], said: str) -> None:
    found = problems(log()[2].replace(*change, 1))
    assert len(found) == 1
    assert said in found[0]


def test_events_that_nobody_here_knows(tmp_path: Path, capsys: Capture) -> None:
    """C155: as a store does, verify asks for the names of what a program knows."""
    trio.run(talk, tmp_path, "a", True)
    where = ("--log", str(tmp_path))
    code, out, _ = in_process(capsys, "verify", *where)
    assert code == 1
    assert "'my-app/note' is no type of this terzetto's" in out
    assert in_process(capsys, "verify", "--extension", "my-app/note", *where)[0] == 0


def test_a_fork_that_was_never_finished() -> None:
    """C154."""
    _, events, _ = log()
    header = evolve(HEADER, parent_id=v.SessionId("p"), seed_length=len(events))
    assert "of its creation" not in problems(lines(header, events))[0]
    assert "creation was not finished" in problems(lines(header, events[:3]))[0]
    last = events[-1]
    wrong = evolve(last, seq=len(events), data=v.EndSeed())
    assert "inherited from 'p'" in problems(lines(header, [*events, wrong]))[0]
    right = evolve(wrong, data=v.EndSeed(inherited=True))
    assert problems(lines(header, [*events, right])) == []


def test_a_session_in_use_may_end_in_a_half(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(log()[2][:-7])
    assert in_process(capsys, "verify", "--log", str(tmp_path))[0] == 1
    path.with_suffix(".owner").write_text(str(os.getpid()))
    code, out, _ = in_process(capsys, "verify", "--log", str(tmp_path))
    assert code == 0
    assert f"a: lock: in use by process {os.getpid()}" in out
    assert "being written now" in out


def test_what_is_printed_obeys_nobody(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a\x1b[2J.jsonl").write_bytes(b'{"\x1b[2J\n')
    code, out, _ = in_process(capsys, "verify", "--log", str(tmp_path))
    assert code == 1
    assert "\x1b" not in out


# --- databases ------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "sessions.db"
    trio.run(talk, path, "a")
    return path


def edit(path: Path, *statements: str) -> None:
    """Change the database behind everybody's back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for name in ("event_is_next", "event_never_changes", "event_stays"):
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM event WHERE seq = 5", "event 6: event 5 should come here"),
        ("UPDATE event SET crc = 1 WHERE seq = 5", "event 5: it is not what was written"),
        ("UPDATE event SET record = x'7b7d' WHERE seq = 5", "event 5: it is not what was written"),
        ("UPDATE session SET header = x'7b7d'", "header: "),
        ("UPDATE session SET id = 'b'", "header: "),
    ],
)
def test_a_database_that_was_edited(
    statement: str, said: str, database: Path, capsys: Capture
) -> None:
    edit(database, statement)
    code, out, _ = in_process(capsys, "verify", "--log", str(database))
    assert code == 1
    assert said in out


def test_any_changed_byte_of_a_database_is_found_or_harmless(
    database: Path, capsys: Capture
) -> None:
    """C148: with a checksum for each record, nothing is silently another history."""
    whole = database.read_bytes()
    expected = trio.run(store_at(database).read, "a")
    for at in range(7, len(whole), 211):
        database.write_bytes(whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :])
        code, out, err = in_process(capsys, "verify", "--log", str(database))
        if code == 0 and out.startswith("1 session"):
            assert trio.run(store_at(database).read, "a")[1] == expected[1]
        else:
            assert out or err
            assert "defect" not in err


def test_a_file_that_is_cut_short(database: Path, capsys: Capture) -> None:
    whole = database.read_bytes()
    for size in range(100, len(whole), 4096):
        database.write_bytes(whole[:size])
        code, out, err = in_process(capsys, "verify", "--log", str(database))
        assert code == 1
        assert "damaged" in out + err or "malformed" in out + err or "database" in out + err
