"""``python -m benchmarks._sse``: a server of streams of text, in a process of its own.

Prints its port. ``POST /{events}/{together}/chat/completions`` is answered with so many
deltas, *together* of them in one write and in one chunk of HTTP.
"""

from __future__ import annotations

import json
import socket
import sys
from functools import cache

from ._work import WORD

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _event(delta: object, reason: str | None) -> bytes:
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
    }
    return b"data: %b\n\n" % json.dumps(chunk).encode()


@cache
def writes(events: int, together: int) -> list[bytes]:
    """The body of an answer, in the pieces it is written in."""
    every = [_event({"content": WORD}, None)] * events
    every += [_event({}, "stop"), b"data: [DONE]\n\n"]
    groups = (b"".join(every[n : n + together]) for n in range(0, len(every), together))
    return [*(b"%x\r\n%b\r\n" % (len(group), group) for group in groups), b"0\r\n\r\n"]


def _serve(client: socket.socket) -> None:
    with client, client.makefile("rb") as asked:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while first := asked.readline():
            _, events, together, *_ = first.split()[1].decode().split("/")
            length = 0
            while (header := asked.readline().strip().lower()) != b"":
                name, _, value = header.partition(b":")
                length = int(value) if name == b"content-length" else length
            asked.read(length)
            client.sendall(HEAD)
            for piece in writes(int(events), int(together)):
                client.sendall(piece)


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            try:
                _serve(client)
            except OSError as error:  # the other side has left
                print(error, file=sys.stderr)


if __name__ == "__main__":
    main()
