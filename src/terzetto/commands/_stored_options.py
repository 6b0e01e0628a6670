"""The arguments of the commands over stored sessions, but for those of `show`.

As there, nothing is imported that ``--help`` would have to wait for, and folders are texts.
"""

from __future__ import annotations

import argparse

from ._show_options import FOLDER, turns

WIRES = ("openai_chat", "deepseek")
"""The adapters whose bodies ``replay`` can write."""
ABOUT = {
    "sessions": """\
List the stored sessions, the newest first: turns, how the last one ended, size, who uses
it. The logs are only read. What is damaged is listed, too, as such.
""",
    "fork": """\
Make a session that begins with the past of another, up to the end of a turn. The other is
only read, and may be in use. Pending input stays behind.

  terzetto fork 5f0c --at 3 --as second-try
""",
    "verify": """\
Check stored sessions from end to end, and say what is wrong where: every record, the order
of events, checksums where there are any, and that the history can be derived. The logs are
only read. The exit code is 1 if anything is wrong.
""",
    "export": """\
Write a session to standard output: as the JSON lines of a log, without any loss, from any
store; or as a transcript for people.

  terzetto export 5f0c --log sessions.db >5f0c.jsonl
  terzetto export 5f0c --format markdown
""",
    "explain": """\
Show how each request of a session extends the one before: its bytes, those that were sent
before, those that are new, and the event that broke the prefix where one did. The log is
only read. The exit code is 1 if a break has no explanation.

  terzetto explain 5f0c --log sessions
  terzetto explain 5f0c --json
""",
    "replay": """\
Print what a session asked its models, once more, from its log alone: a line for each
request, or all of one. Or run the session again, to see whether the engine still does the
same. Needs no key and no network, runs no tool, and the log is only read.

  terzetto replay 5f0c
  terzetto replay 5f0c --request 3
  terzetto replay 5f0c --request 3 --wire deepseek >body.json
  terzetto replay 5f0c --verify
""",
}
HELP = {
    "sessions": "list the sessions",
    "fork": "go on from a turn, in a new session",
    "verify": "check that sessions are whole",
    "export": "write a session out",
    "explain": "see what each request repeats, and why",
    "replay": "see every request once more",
}


def add_arguments(name: str, parser: argparse.ArgumentParser) -> None:
    """The arguments of the command called *name*."""
    add = parser.add_argument
    if name in {"fork", "export", "explain", "replay"}:
        add("session", metavar="SESSION", help="a session id, or the path of a log")
    if name == "verify":
        add("sessions", metavar="SESSION", nargs="*", help="ids or paths; all by default")
        add("--all", action="store_true", help="all in --log, which is the default")
        add(
            "--extension",
            dest="extensions",
            action="append",
            default=[],
            metavar="NAME",
            help="a type of event that your program knows; may be repeated",
        )
    add(
        "--log",
        default=FOLDER,
        metavar="PATH",
        help=f"the folder, or the database; {FOLDER} by default",
    )
    if name == "explain":
        add("--turn", type=turns, metavar="N", help="only this turn; 2-4 or 2- for several")
    if name == "replay":
        add(
            "--request",
            type=_number,
            dest="number",
            metavar="N",
            help="only this one, whole, as explain numbers them",
        )
        add(
            "--wire",
            choices=WIRES,
            help="with --request: the body as this adapter sends it, instead of our JSON",
        )
        add(
            "--verify",
            action="store_true",
            help="run the session again, the log in the place of model, tools and people; "
            "the exit code is 1 if the engine does anything else now",
        )
    if name in {"sessions", "explain", "replay"}:
        add("--json", action="store_true", help="one JSON document, for programs")
    if name == "fork":
        add("--at", type=_turn, dest="turn", metavar="TURN", help="after this turn; now by default")
        add("--as", dest="name", metavar="ID", help="the id of the fork; a random one by default")
    if name == "export":
        add(
            "--format",
            choices=("jsonl", "markdown"),
            default="jsonl",
            help="jsonl, the default: everything; markdown: what was said and done",
        )


def _turn(text: str) -> int:
    return _counted(text, "a turn")


def _number(text: str) -> int:
    return _counted(text, "a request")


def _counted(text: str, what: str) -> int:
    if not text.isdecimal() or len(text) > 15 or not int(text):
        raise argparse.ArgumentTypeError(f"expected the number of {what}, got {text!r}")
    return int(text)
