"""The options of ``terzetto chat``: reading them, and saying in one line what is wrong.

Nothing here imports a model or Trio, so that ``--help`` does not wait for them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

from ..tools import Tool
from ._terminal import CommandError

ABOUT = """\
Talk to a model in the terminal. Type while it works to steer it; Ctrl-C interrupts an
answer and keeps what came of it, a second one leaves; Ctrl-D leaves; /help lists more.
From a pipe, each line is one prompt.

  export DEEPSEEK_API_KEY=...; terzetto chat
  export OPENAI_API_KEY=...;   terzetto chat --provider openai --model gpt-6-luna
  terzetto chat --base-url http://127.0.0.1:8080/v1 --model llama
  terzetto chat --log talks --tools my_tools:search --system @prompt.md
  terzetto chat --log talks --resume chat-1a2b3c4d
"""
NEWEST = ""
"""What ``--resume`` means without a name."""


@frozen(kw_only=True)
class ChatOptions:
    """What the command line says, apart from the model.

    *resume* is a session in *log*, `NEWEST` for the one made last, None for a fresh one.
    """

    system: str | None = None
    tools: tuple[Tool, ...] = ()
    log: Path | None = None
    resume: str | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    model = parser.add_argument_group("the model")
    model.add_argument(
        "--provider",
        type=_name,
        metavar="NAME",
        help="deepseek or openai; another name with --base-url. By default what is asked for "
        "by --base-url (openai), DEEPSEEK_API_KEY, OPENAI_API_KEY or OPENAI_BASE_URL",
    )
    model.add_argument(
        "--model",
        type=_name,
        metavar="NAME",
        help="as the server calls it; deepseek and openai have a default",
    )
    model.add_argument("--effort", type=_name, metavar="LEVEL", help="how hard it shall think")
    model.add_argument(
        "--base-url",
        metavar="URL",
        help="a server that speaks chat completions, without /chat/completions",
    )
    model.add_argument(
        "--api-key-env",
        metavar="VAR",
        help="the environment variable that holds the key; without it the provider's own key "
        "goes to the provider's own address, and none to --base-url",
    )
    add(
        "--system",
        type=_system,
        metavar="TEXT",
        help="the system prompt; @FILE reads it, @@ stands for an @",
    )
    add(
        "--tools",
        nargs="+",
        action="extend",
        default=[],
        metavar="MODULE:NAME",
        help="a terzetto tool, or a list of them, from a module in this folder or installed",
    )
    add("--log", type=Path, metavar="DIR", help="keep the conversation in this folder")
    add(
        "--resume",
        nargs="?",
        const=NEWEST,
        metavar="SESSION",
        help="go on with a conversation in --log; without a name, with the newest",
    )


def chat_options(arguments: argparse.Namespace, tools: Iterable[Tool]) -> ChatOptions:
    """Raises `CommandError` for what cannot be."""
    if arguments.resume is not None and arguments.log is None:
        raise CommandError("--resume: name the folder that keeps the conversation with --log", 2)
    return ChatOptions(
        system=arguments.system,
        tools=tuple(tools),
        log=arguments.log,
        resume=arguments.resume,
    )


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("expected a name, got an empty text")
    return text


def _system(text: str) -> str:
    if not text.startswith("@") or text.startswith("@@"):
        return text.removeprefix("@") if text.startswith("@@") else text
    try:
        return Path(text[1:]).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise argparse.ArgumentTypeError(
            f"expected a text file in {text[1:]!r}: {reason}"
        ) from error
