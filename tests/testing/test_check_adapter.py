"""What `check_adapter` says of adapters that are wrong, and that ours are right."""

import json
from contextlib import aclosing, asynccontextmanager
from itertools import count

import pytest
import trio

from terzetto import CallConfig, Failure, InvalidValue, ModelInfo, ProviderError, Usage
from terzetto.llm.deepseek import DeepSeek
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import ScriptedModel, answer, call, say, think
from terzetto.testing import check_adapter
from terzetto.vocabulary import Finish, Stop, TextDelta, UsageChunk

SECRET = "sk-very-secret"
SCRIPT = [answer(think("Hm."), say("Grüße 🌍, you.", pieces=3), call("look", path="a.txt"))]
FEW = {"limit": 8, "splits": 30}

# --- right ------------------------------------------------------------------------------------


# A client of httpx takes a while to make, and other tests split every answer at every byte.
@pytest.mark.parametrize(("kind", "splits"), [(OpenAIChat, 12), (DeepSeek, 4)])
def test_our_adapters_over_http_are_right(kind, splits):
    """C109, C110: one finish, failures with codes, nothing of a key."""

    def make(url):
        return kind(base_url=url, api_key=SECRET)

    report = check_adapter(make, script=SCRIPT, secrets=[SECRET], limit=4, splits=splits)
    assert report.verdicts == (), report
    assert report.skipped == ()
    assert report.runs > 2 * splits


def test_scripted_model_is_right():
    report = check_adapter(lambda: ScriptedModel([*SCRIPT]), limit=20)
    assert report.verdicts == (), report
    assert report.subject == "adapter 'scripted'"
    assert "not given a server" in report.skipped[0]


# --- a provider of our own: lines of JSON over HTTP ---------------------------------------------

# It ends with the connection.
LINES = b'{"text": "You"}\n{"text": " said"}\n{"text": " hello."}\n{"done": true}\n'
REPLY = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + LINES


class Line:
    """An adapter that is right, with a part for each way to be wrong."""

    provider = "lines"
    config = None
    adapter_defaults: frozenset = frozenset()
    info = ModelInfo()

    def __init__(self, url):
        self.port = int(url.rpartition(":")[2].partition("/")[0])
        self.key = SECRET

    async def prepare(self, config: CallConfig):
        await trio.lowlevel.checkpoint()
        self.config = config
        return self

    async def aclose(self):
        await trio.lowlevel.checkpoint()

    def body(self, request):
        return json.dumps([message.text for message in request.messages]).encode()

    @asynccontextmanager
    async def open_stream(self, request):
        body = self.body(request)
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            head = f"POST /v1 HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
            await stream.send_all(head.encode() + body)
            async with aclosing(self.decode(stream)) as chunks:
                yield chunks

    async def decode(self, stream):
        received = b""
        in_body = False
        async for piece in stream:
            received += piece
            if not in_body:
                head, found, rest = received.partition(b"\r\n\r\n")
                if not found:
                    continue
                self.check_status(head)
                in_body, received = True, rest
            *lines, received = received.split(b"\n")
            for line in lines:
                for chunk in self.chunks(json.loads(line)):
                    yield chunk
                    if isinstance(chunk, Finish):
                        return
        for chunk in self.broke_off():
            yield chunk

    def check_status(self, head):
        status = int(head.split()[1])
        if status != 200:
            failure = Failure(message=f"status {status}", code="SERVER", status=status)
            raise ProviderError(failure)

    def chunks(self, event):
        if "text" in event:
            yield TextDelta(0, event["text"])
        if "done" in event:
            yield UsageChunk(Usage(input_tokens=1, output_tokens=2))
            yield Finish(Stop())

    def broke_off(self):
        raise ProviderError(Failure(message="the answer broke off", code="TRANSPORT"))


def test_adapter_of_ones_own_is_right():
    report = check_adapter(Line, reply=REPLY, secrets=[SECRET], **FEW)
    assert report.verdicts == (), report


# --- wrong --------------------------------------------------------------------------------------


class TakesWhatItGot(Line):
    def broke_off(self):
        yield Finish(Stop())


class SaysNothingAtTheEnd(Line):
    def chunks(self, event):
        return (chunk for chunk in super().chunks(event) if not isinstance(chunk, Finish))

    def broke_off(self):
        return iter(())


class SendsUsageLate(Line):
    async def decode(self, stream):
        async with aclosing(super().decode(stream)) as chunks:
            async for chunk in chunks:
                yield chunk
        yield UsageChunk(Usage(input_tokens=1, output_tokens=2))


class ChangesItsMind(Line):
    def chunks(self, event):
        for chunk in super().chunks(event):
            if isinstance(chunk, TextDelta) and "said" in chunk.text:
                yield from self.thought(chunk.text)
            else:
                yield chunk

    def thought(self, text):
        from terzetto.vocabulary import ReasoningDelta

        yield ReasoningDelta(0, text)


class ReadsWholePieces(Line):
    async def decode(self, stream):
        in_body = False
        async for piece in stream:
            if not in_body:
                head, _, piece = piece.partition(b"\r\n\r\n")
                self.check_status(head)
                in_body = True
            for line in piece.split(b"\n"):
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                for chunk in self.chunks(event):
                    yield chunk
                    if isinstance(chunk, Finish):
                        return
        self.broke_off()


class WaitsForTheEnd(Line):
    async def decode(self, stream):
        async with aclosing(super().decode(stream)) as made:
            chunks = [chunk async for chunk in made]
        for chunk in chunks:
            yield chunk


class StartsAgain(Line):
    def broke_off(self):
        yield TextDelta(0, "I am sorry.")
        super().broke_off()


class RaisesWhatItGets(Line):
    def broke_off(self):
        raise EOFError("no more")


class HasNoCodes(Line):
    def check_status(self, head):
        if b" 200 " not in head:
            raise ProviderError(Failure(message=head.decode()[:20]))


class ShowsItsKey(Line):
    def __repr__(self):
        return f"ShowsItsKey({self.key!r})"


class ShowsItsKeyInErrors(Line):
    def check_status(self, head):
        if b" 401 " in head:
            raise ProviderError(Failure(message=f"wrong key {self.key}", code="AUTH", status=401))
        super().check_status(head)


_numbers = count()


class NumbersItsRequests(Line):
    def body(self, request):
        return json.dumps({"id": next(_numbers)}).encode()


class KeepsItsConnection(Line):
    @asynccontextmanager
    async def open_stream(self, request):
        body = self.body(request)
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        self.stream = stream
        head = f"POST /v1 HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
        await stream.send_all(head.encode() + body)
        async with aclosing(self.decode(stream)) as chunks:
            yield chunks

    async def aclose(self):
        await self.stream.aclose()


class ShieldsItself(Line):
    @asynccontextmanager
    async def open_stream(self, request):
        with trio.CancelScope(shield=True):
            async with super().open_stream(request) as chunks:
                yield chunks


class ShieldsItsRequest(Line):
    async def prepare(self, config):
        with trio.CancelScope(shield=True):
            return await super().prepare(config)


class HidesItsCancel(Line):
    async def prepare(self, config):
        try:
            return await super().prepare(config)
        except trio.Cancelled:
            raise ConnectionError("not now") from None


@pytest.mark.parametrize(
    ("adapter", "kind"),
    [
        (TakesWhatItGot, "takes-truncation"),
        (SaysNothingAtTheEnd, "no-finish"),
        (SendsUsageLate, "after-finish"),
        (ChangesItsMind, "wrong-order"),
        (ReadsWholePieces, "splits-wrong"),
        (WaitsForTheEnd, "loses-prefix"),
        (StartsAgain, "loses-prefix"),
        (RaisesWhatItGets, "unclassified"),
        (HasNoCodes, "unclassified"),
        (ShowsItsKey, "tells-secret"),
        (ShowsItsKeyInErrors, "tells-secret"),
        (NumbersItsRequests, "unstable-bytes"),
        (KeepsItsConnection, "keeps-connection"),
        (ShieldsItself, "shields-forever"),
        (ShieldsItsRequest, "shields-forever"),
        (HidesItsCancel, "swallows-cancelled"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_defect_is_named(adapter, kind):
    report = check_adapter(adapter, reply=REPLY, secrets=[SECRET], **FEW)
    assert kind in report.kinds, report


def test_secret_itself_is_not_in_the_report():
    report = check_adapter(ShowsItsKey, reply=REPLY, secrets=[SECRET], **FEW)
    assert report.kinds == ("tells-secret",)
    assert SECRET not in str(report)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"script": SCRIPT, "reply": REPLY}, "expected script or reply, got both"),
        ({"reply": REPLY, "ignore": ["sloth"]}, "there is no verdict 'sloth'"),
    ],
)
def test_bad_input_is_refused(options, said):
    with pytest.raises(InvalidValue, match=said):
        check_adapter(Line, **options)


def test_adapter_that_does_not_ask_the_server_is_refused():
    with pytest.raises(InvalidValue, match="sent no request to the server"):
        check_adapter(lambda url: ScriptedModel(["Hello."]), script=["Hello."])
