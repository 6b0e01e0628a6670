"""Agents behind a web page, inside one Trio program.

    python docs/examples/web/server.py --scripted

serves http://127.0.0.1:8000 with a scripted model: no key, no network. With a server that
speaks OpenAI's chat completions:

    OPENAI_API_KEY=... OPENAI_MODEL=gpt-4o-mini python docs/examples/web/server.py

It needs ``starlette`` and ``hypercorn``. The program owns everything: the engine, the
nursery that holds the agents (`hub.py`), and the HTTP server (`api.py`), nested in the order
in which they must end.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import trio
from api import build_app
from hub import open_hub
from hypercorn.config import Config
from hypercorn.trio import serve
from shop import SYSTEM, scripted_model, shop_tools

import terzetto
from terzetto.llm.openai_chat import OpenAIChat

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework


async def run(options: argparse.Namespace) -> None:
    adapter, model = choose_model(options)
    store = terzetto.JsonlStore(options.sessions)
    config = Config()
    config.bind = [bind(options.host, options.port, options.patience)]
    config.loglevel = "WARNING"
    config.graceful_timeout = 3  # seconds for requests that have not ended by then
    async with trio.open_nursery() as nursery:
        stop_serving = trio.Event()
        async with (
            terzetto.open_engine(
                adapters=[adapter], tools=shop_tools(options.pace), store=store
            ) as engine,
            open_hub(
                engine, store, provider="openai", model=model, system=SYSTEM, linger=options.linger
            ) as hub,
        ):
            app = cast("ASGIFramework", build_app(hub))  # ASGI, in two spellings of its types
            [address] = await nursery.start(
                partial(serve, app, config, shutdown_trigger=stop_serving.wait)
            )
            print(f"web: serving {address}; Ctrl-C stops it", flush=True)
            await wait_for_signal()
            print("web: stopping", flush=True)
        # The agents have ended first: their turns are closed, the logs are on disk, and the
        # pages were told while there was still a server to tell them.
        stop_serving.set()
    print("web: stopped", flush=True)


async def wait_for_signal() -> None:
    """Return at the first Ctrl-C or SIGTERM; a second one kills as usual."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return


def bind(host: str, port: int, patience: float) -> str:
    """An address to serve, as Hypercorn takes it: bound here, where one line can say why not."""
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise SystemExit(f"web: cannot serve {host}:{port}: {error.strerror}") from None
    if sys.platform == "linux":
        # Hypercorn shields its writes from cancellation. A page that does not read would keep
        # the server from ending; so the system gives such a connection up. The page comes
        # back by itself, to where it was.
        timeout_ms = round(patience * 1000)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
    return f"fd://{listener.detach()}"


def choose_model(options: argparse.Namespace) -> tuple[terzetto.Adapter, str]:
    if options.scripted:
        return scripted_model(options.pace), "scripted"
    try:
        return OpenAIChat.from_env(), os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
    except terzetto.InvalidValue as error:
        raise SystemExit(f"web: {error}; or try --scripted") from None


def main() -> int:
    parser = argparse.ArgumentParser(description="Agents behind a web page.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 means any free one")
    parser.add_argument("--sessions", type=Path, default=Path("web-sessions"), metavar="DIR")
    parser.add_argument("--scripted", action="store_true", help="no key and no network")
    parser.add_argument("--pace", type=float, default=1.0, help="seconds that a tool takes")
    parser.add_argument(
        "--patience", type=float, default=20.0, help="seconds that a page may read nothing"
    )
    parser.add_argument(
        "--linger", type=float, default=300.0, help="seconds that a session nobody sees stays open"
    )
    trio.run(run, parser.parse_args())
    return 0


if __name__ == "__main__":
    sys.exit(main())
