"""The web example's HTTP side, without a browser: resuming streams, errors, lifetimes."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import h11
import httpx
import pytest
import trio
from attrs import define, field, frozen
from tests.commands import linux_like, of_type, read_log
from tests.examples.processes import program, run
from tests.examples.test_web import Shop, endings, shop

from terzetto.llm.scripted import Gate, answer, call, say

pytestmark = linux_like


@frozen
class Sent:
    """One server-sent event. *id* is absent where the stream has none."""

    event: str
    data: object
    id: int | None = None

    @property
    def text(self) -> str:
        """Of a piece of an answer; empty for all else."""
        return (
            self.data["text"] if isinstance(self.data, dict) and self.data["type"] == "text" else ""
        )


@define(eq=False)
class Stream:
    """A page's stream, read event by event. Leaving `streaming` hangs up without a word."""

    _http: h11.Connection
    _socket: trio.SocketStream
    status: int = field(default=0, init=False)
    _text: str = field(default="", init=False)

    async def _more(self) -> bool:
        """Take the next piece of the response; False at its end."""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._socket.receive_some())
            elif isinstance(event, h11.Response):
                self.status = event.status_code
                assert dict(event.headers)[b"content-type"] == b"text/event-stream"
                return True
            elif isinstance(event, h11.Data):
                self._text += bytes(event.data).decode()
                return True
            else:
                return False

    async def next(self) -> Sent | None:
        """The next event, None at the end."""
        while True:
            while "\n\n" not in self._text:
                if not await self._more():
                    return None
            block, _, self._text = self._text.partition("\n\n")
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            if "data" in fields:
                seq = int(fields["id"]) if "id" in fields else None
                return Sent(fields.get("event", "message"), json.loads(fields["data"]), seq)

    async def next_logged(self) -> Sent:
        """The next event of the log."""
        while (sent := await self.next()) is not None:
            if sent.id is not None:
                return sent
        raise AssertionError("the stream has ended")


@asynccontextmanager
async def streaming(url: str, path: str, after: int | None = None) -> AsyncIterator[Stream]:
    port = int(url.rpartition(":")[2])
    async with await trio.open_tcp_stream("127.0.0.1", port) as socket:
        http = h11.Connection(h11.CLIENT)
        headers = [("host", "127.0.0.1")]
        if after is not None:
            headers.append(("last-event-id", str(after)))
        request = h11.Request(method="GET", target=path, headers=headers)
        await socket.send_all(http.send(request) + http.send(h11.EndOfMessage()))
        stream = Stream(http, socket)
        assert await stream._more()
        assert stream.status == 200
        yield stream


@asynccontextmanager
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as one:
        yield one


async def begin(http: httpx.AsyncClient, text: str) -> str:
    response = await http.post("/api/sessions", json={"text": text})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def read_log_until(
    url: str, session: str, after: int | None, seq: int | None = None
) -> list[Sent]:
    """The log's part of a stream, up to *seq*, or to the end of the turn; then hang up."""
    found: list[Sent] = []
    async with streaming(url, f"/api/sessions/{session}/events", after) as stream:
        while True:
            sent = await stream.next_logged()
            found.append(sent)
            assert isinstance(sent.data, dict)
            if sent.id == seq or (seq is None and sent.data["type"] == "turn-end"):
                return found


async def health(http: httpx.AsyncClient, *names: str) -> tuple[int, ...]:
    found = (await http.get("/api/health")).json()
    return tuple(found[name] for name in names)


async def no_streams(http: httpx.AsyncClient) -> None:
    """Wait until the server has no stream; it notices by itself that a client went away."""
    while await health(http, "streams") != (0,):
        await trio.sleep(0.02)


async def test_a_stream_goes_on_after_the_last_event_that_came(tmp_path: Path) -> None:
    """Wherever it breaks: nothing is missing, and nothing comes twice."""
    script = [
        answer("Let me look. ", call("find_order", number=7), call("check_stock", item="x")),
        answer("It is on its way, ", "and comes soon."),
    ]
    async with shop(tmp_path, script) as one, one.served(), client(one.url) as http:
        session = await begin(http, "Where is it?")
        whole = await read_log_until(one.url, session, None)
        seqs = [sent.id for sent in whole if sent.id is not None]
        assert seqs == sorted(set(seqs))
        for sent in whole[:-1]:
            head = await read_log_until(one.url, session, None, sent.id)
            assert head + await read_log_until(one.url, session, sent.id) == whole
        await no_streams(http)


async def test_a_stream_that_broke_while_the_model_spoke(tmp_path: Path) -> None:
    script = [answer("One ", Gate("a"), "two ", Gate("b"), "three.")]
    async with shop(tmp_path, script) as one, one.served(), client(one.url) as http:
        session = await begin(http, "Count.")
        parts: list[Sent] = []
        for gate, word in [("a", "One "), ("b", "two ")]:
            after = parts[-1].id if parts else None
            async with streaming(one.url, f"/api/sessions/{session}/events", after) as stream:
                said = ""
                while said != word:
                    parts.append(await stream.next_logged())
                    said = parts[-1].text
            await no_streams(http)  # it went away while nothing was sent
            one.model.gates.open(gate)
        parts += await read_log_until(one.url, session, parts[-1].id)
        assert parts == await read_log_until(one.url, session, None)
        assert [part.text for part in parts if part.text] == ["One ", "two ", "three."]


async def test_clients_that_go_away_leave_nothing_and_sessions_close_behind_them(
    tmp_path: Path,
) -> None:
    script = [answer("One."), answer("Two.")]
    async with shop(tmp_path, script) as one, one.served("--linger", "0"), client(one.url) as http:
        async with streaming(one.url, "/api/events") as overview:
            hello = await overview.next()
            assert hello is not None
            assert hello.event == "hello"
            assert await overview.next() == Sent("sessions", [])
            session = await begin(http, "First.")

            async def until(status: str) -> None:
                while (sent := await overview.next()) is not None:
                    assert isinstance(sent.data, list)
                    if [row["status"] for row in sent.data] == [status]:
                        return

            await until("closed")  # nobody looks, and nothing runs
            await read_log_until(one.url, session, None)  # a look opens it again
            await until("closed")
            response = await http.post(
                f"/api/sessions/{session}/messages", json={"text": "Second."}
            )
            assert response.json()["steered"] is False
            await until("closed")
            assert await health(http, "sessions", "streams") == (1, 1)
        await no_streams(http)
    [log] = one.logs()
    assert endings(log) == ["completed", "completed"]


async def test_streams_that_are_hung_up_leave_no_task(tmp_path: Path) -> None:
    """While the model speaks, and while it does not."""
    script = [answer("One ", Gate("rest"), "two.")]
    async with shop(tmp_path, script) as one, one.served(), client(one.url) as http:
        session = await begin(http, "Count.")
        for _ in range(2):
            [before] = await health(http, "tasks")
            async with AsyncExitStack() as stack:
                for path in [f"/api/sessions/{session}/events", "/api/events"] * 5:
                    stream = await stack.enter_async_context(streaming(one.url, path))
                    assert await stream.next() is not None
                tasks, streams = await health(http, "tasks", "streams")
                assert streams == 10
                assert tasks >= before + 10
            while await health(http, "tasks") != (before,):
                await trio.sleep(0.02)
            one.model.gates.open("rest")
            await read_log_until(one.url, session, None)
            await no_streams(http)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing ends such a connection")
async def test_a_page_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    """Neither the agent, nor another page, nor the end of the server."""
    script = [answer(say("0123456789" * 600_000, pieces=600))]
    async with shop(tmp_path, script) as one, one.served("--patience", "1") as running:
        async with client(one.url) as http:
            session = await begin(http, "Tell me everything.")
            path = f"/api/sessions/{session}/events"
            async with streaming(one.url, path) as asleep:
                assert await asleep.next() is not None
                whole = await read_log_until(one.url, session, None)
                assert sum(len(sent.text) for sent in whole) == 6_000_000
                running.send(signal.SIGTERM)
                assert await running.ended() == 0
    [log] = one.logs()
    assert endings(log) == ["completed"]
    assert "Traceback" not in running.out


JSON = {"content-type": "application/json"}


REFUSED = [
    ("POST", "/api/sessions", {}, '{"text": "x"}', 415, "NOT_JSON"),
    ("POST", "/api/sessions", {"content-type": "text/plain"}, '{"text": "x"}', 415, "NOT_JSON"),
    ("POST", "/api/sessions", JSON, "{", 400, "NOT_JSON"),
    ("POST", "/api/sessions", JSON, b"\xff", 400, "NOT_JSON"),
    ("POST", "/api/sessions", JSON, "[" * 50_000, 400, "NOT_JSON"),
    ("POST", "/api/sessions", JSON, "[1]", 400, "NOT_JSON"),
    ("POST", "/api/sessions", JSON, "{}", 400, "NO_TEXT"),
    ("POST", "/api/sessions", JSON, '{"text": " \\n"}', 400, "NO_TEXT"),
    ("POST", "/api/sessions", JSON, '{"text": 1}', 400, "NO_TEXT"),
    ("POST", "/api/sessions", JSON, b"x" * 70_000, 413, "TOO_LONG"),
    ("POST", "/api/sessions/nobody/messages", JSON, '{"text": "x"}', 404, "NOT_FOUND"),
    ("POST", "/api/sessions/nobody/interrupt", JSON, '{"text": "x"}', 404, "NOT_FOUND"),
    ("POST", "/api/sessions/nobody/stop", JSON, "{}", 404, "NOT_FOUND"),
    ("GET", "/api/sessions/nobody/events", {}, None, 404, "NOT_FOUND"),
    ("GET", "/api/sessions/..%2F..%2Fetc/events", {}, None, 404, "HTTP"),
    ("GET", "/api/sessions/a.b/events", {}, None, 400, "BAD_ID"),
    ("GET", "/api/sessions/%00/events", {}, None, 400, "BAD_ID"),
    ("GET", "/api/sessions/" + "a" * 81 + "/events", {}, None, 400, "BAD_ID"),
    ("GET", "/api/sessions/a/events", {"last-event-id": "x"}, None, 400, "BAD_SEQ"),
    ("GET", "/api/sessions/a/events", {"last-event-id": "-2"}, None, 400, "BAD_SEQ"),
    ("GET", "/api/sessions", {}, None, 405, "HTTP"),
    ("GET", "/etc/passwd", {}, None, 404, "HTTP"),
]


async def test_errors_are_json_and_change_nothing(tmp_path: Path) -> None:
    """One server for all of them: after each it still serves."""
    async with shop(tmp_path, []) as one, one.served() as running, client(one.url) as http:
        for method, path, headers, body, status, code in REFUSED:
            response = await http.request(method, path, headers=headers, content=body)
            case = (method, path, response.text)
            assert response.status_code == status, case
            error = response.json()["error"]
            assert (error["code"], set(error)) == (code, {"code", "message"}), case
            assert error["message"], case
        alien = await http.get("/", headers={"host": "evil.example"})
        assert alien.status_code == 400
        assert (
            (await http.get("/")).headers["content-security-policy"].startswith("default-src 'no")
        )
        assert await health(http, "sessions", "streams") == (0, 0)
        assert "Traceback" not in running.out
    assert one.logs() == []


async def test_a_session_that_another_program_holds_is_told(tmp_path: Path) -> None:
    script = [answer("One."), answer("Two.")]
    async with shop(tmp_path, script) as one, one.served():
        async with client(one.url) as http:
            session = await begin(http, "First.")
            await read_log_until(one.url, session, None)
            other = Shop(one.model, one.folder)
            async with other.served(), client(other.url) as second:
                response = await second.get(f"/api/sessions/{session}/events")
                assert (response.status_code, response.json()["error"]["code"]) == (409, "LOCKED")


async def test_it_runs_scripted_and_says_what_is_missing_without(tmp_path: Path) -> None:
    given = ("--scripted", "--port", "0", "--pace", "0.02")
    async with program("web/server.py", *given, cwd=tmp_path) as running:
        url = (await running.said(r"serving (http\S+);"))[1]
        async with client(url) as http:
            for text in ("Where is order 1042?", "Where is order 9100?", "What can you do?"):
                session = await begin(http, text)
                await read_log_until(url, session, None)
        taken = ("--scripted", "--port", url.rpartition(":")[2])
        code, said = await run("web/server.py", *taken, cwd=tmp_path)
        assert (code, said.count("\n")) == (1, 1), said
        assert "Address already in use" in said
        running.send(signal.SIGTERM)
        assert await running.ended() == 0
    logs = [read_log(path) for path in (tmp_path / "web-sessions").glob("*.jsonl")]
    assert sorted(len(of_type(log, "tool/result")) for log in logs) == [0, 2, 3]
    assert [endings(log) for log in logs] == [["completed"]] * 3
    code, said = await run("web/server.py", cwd=tmp_path, OPENAI_API_KEY="")
    assert (code, said.count("\n")) == (1, 1), said
    assert said.startswith("web: OPENAI_API_KEY is not set")
