"""The options of ``terzetto chat``: reading them, and saying in one line what is wrong.

Nothing here imports more than the parser itself needs: ``--help`` waits for it. So the folder
is a text still; `terzetto.cli` makes it a path.
"""

from __future__ import annotations

import argparse

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
    add("--log", metavar="DIR", help="keep the conversation in this folder")
    add(
        "--resume",
        nargs="?",
        const=NEWEST,
        metavar="SESSION",
        help="go on with a conversation in --log; without a name, with the newest",
    )


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("expected a name, got an empty text")
    return text


def _system(text: str) -> str:
    if not text.startswith("@") or text.startswith("@@"):
        return text.removeprefix("@") if text.startswith("@@") else text
    try:
        with open(text[1:], encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise argparse.ArgumentTypeError(
            f"expected a text file in {text[1:]!r}: {reason}"
        ) from error
