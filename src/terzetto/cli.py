"""The command line: ``terzetto demo``, ``terzetto chat``, ``terzetto show`` and more.

Owns arguments, exit codes and the last word about failures: one line on stderr, never a
traceback. What the commands do is theirs (`_demo`, `_chat`, `_show`, ...); they are imported
when they run, and the engine with them, so that ``--help`` waits for neither. The same goes for
whatever of the standard library argparse does without, `typing` and `pathlib` first.
"""

from __future__ import annotations

import argparse
import os
import sys

from . import __version__
from .commands import _chat_options, _show_options, _stored_options
from .commands._errors import CommandError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import NoReturn

    from .commands._terminal import Diagnostics, Terminal
    from .tools import Tool

_EXIT_CODES = "exit codes: 0 done, 1 something failed, 2 the command line is wrong, 130 Ctrl-C"
_DEMO = """\
Show what the engine does, with a scripted model behind a real HTTP server: no key, no
network. The tools only read the folder; the log and a note go to a temporary folder.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. *argv* is without the program's name."""
    try:
        code = _run(argv)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse, after --help and --version
        return stop.code if isinstance(stop.code, int) else 0
    except BaseException as error:  # the last frame of the program
        code, text = _outcome(error)
        if text is not None:
            from contextlib import suppress

            from .commands._text import one_line

            with suppress(OSError, ValueError):
                print(f"terzetto: {one_line(text)}", file=sys.stderr)
        return code


def _outcome(error: BaseException) -> tuple[int, str | None]:
    """The exit code for *error*, and what is to be said."""
    if isinstance(error, BaseExceptionGroup):
        if error.subgroup(KeyboardInterrupt) is not None:
            return 130, None
        if len(error.exceptions) == 1:
            return _outcome(error.exceptions[0])
    match error:
        case KeyboardInterrupt():
            return 130, None
        case BrokenPipeError():
            _forget_stdout()
            return 1, None
        case CommandError(code=code):
            return code, str(error)

    from .vocabulary import TerzettoError, UsageError, chain_text

    match error:
        case UsageError():
            return 2, chain_text(error)
        case TerzettoError():
            return 1, chain_text(error)
        case OSError():
            return 1, f"the system refused: {error}"
        case _:
            import traceback
            from pathlib import Path

            frames = traceback.extract_tb(error.__traceback__)
            where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
            text = f"{type(error).__name__}: {chain_text(error)}"
            return 1, f"a defect of terzetto at {where}, please report it: {text}"


def _forget_stdout() -> None:
    """Nobody reads it any more; the interpreter's last flush must not complain."""
    from contextlib import suppress

    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --- arguments --------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """One line for a mistake, and no guessing of options: ``--api-key`` is not short for
    ``--api-key-env``."""

    def __init__(self, **options: object) -> None:
        super().__init__(
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,  # type: ignore[arg-type]
        )

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}; see {self.prog} --help", 2)


def _parser() -> _Parser:
    parser = _Parser(
        prog="terzetto",
        description="The agent engine for Trio, on the command line.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"terzetto {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    demo = commands.add_parser("demo", help="see what it does, without a key", description=_DEMO)
    chat = commands.add_parser("chat", help="talk to a model", description=_chat_options.ABOUT)
    show = commands.add_parser("show", help="look at a session", description=_show_options.ABOUT)
    _add_demo(demo)
    _chat_options.add_options(chat)
    _show_options.add_arguments(show)
    for name, about in _stored_options.ABOUT.items():
        other = commands.add_parser(name, help=_stored_options.HELP[name], description=about)
        _stored_options.add_arguments(name, other)
    return parser


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir",
        default=".",
        metavar="PATH",
        help="the folder that the tools look at; the current one by default",
    )
    parser.add_argument("--fast", action="store_true", help="without pauses for reading")
    parser.add_argument(
        "--sessions",
        dest="kept",
        metavar="DIR",
        help="where the log is kept; a fresh temporary folder by default",
    )


def _run(argv: Sequence[str] | None) -> int:
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse_unknown(unknown)
    if arguments.command is None:
        parser.error(f"expected a command: {', '.join(_COMMANDS)}")
    run = _COMMANDS[arguments.command]

    from .commands._terminal import Diagnostics, Terminal

    _make_paths(arguments)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # for streams that are closed
        diagnostics = Diagnostics(Terminal.on(sys.stderr or nowhere))
        with diagnostics.collecting():
            return run(arguments, Terminal.on(sys.stdout or nowhere), diagnostics)


def _make_paths(arguments: argparse.Namespace) -> None:
    """The texts that name folders become paths."""
    from pathlib import Path

    for name, value in vars(arguments).items():
        if name in _FOLDERS and isinstance(value, str):
            setattr(arguments, name, Path(value))


_FOLDERS = {"dir", "kept", "log"}


def _refuse_unknown(unknown: Sequence[str]) -> NoReturn:
    """Name the first option that is not known. Values are not repeated: one may be a key."""
    option = next((word.partition("=")[0] for word in unknown if word.startswith("-")), None)
    if option is None:
        raise CommandError("expected options only, got something else; see terzetto --help", 2)
    if option.startswith("--api-key"):
        raise CommandError(
            f"{option}: keys are not taken from the command line, where others can see them; "
            "put it into an environment variable and name that with --api-key-env",
            2,
        )
    raise CommandError(f"{option[:40]!r} is no option of this command; see terzetto --help", 2)


# --- commands ---------------------------------------------------------------------------------


def _demo(arguments: argparse.Namespace, terminal: Terminal, _: Diagnostics) -> int:
    import trio

    from .commands._demo import DemoOptions, run_demo
    from .commands._demo_tools import FAST, Pace

    folder: Path = arguments.dir
    if not folder.is_dir():
        raise CommandError(f"--dir: expected a folder, got {str(folder)!r}", 2)
    options = DemoOptions(
        folder=folder, sessions=arguments.kept, pace=FAST if arguments.fast else Pace()
    )
    return trio.run(run_demo, options, terminal)


def _chat(arguments: argparse.Namespace, terminal: Terminal, diagnostics: Diagnostics) -> int:
    import trio

    from .commands._chat import Stdin, chat_options, run_chat
    from .commands._chat_route import Asked

    asked = Asked(
        provider=arguments.provider,
        model=arguments.model,
        effort=arguments.effort,
        base_url=arguments.base_url,
        key_variable=arguments.api_key_env,
    )
    tools = [tool for target in arguments.tools for tool in _tools(target)]
    options = chat_options(arguments, tools)
    stdin = Stdin()
    if sys.stdin is not None:
        stdin = Stdin(sys.stdin.fileno(), sys.stdin.encoding or "utf-8", sys.stdin.isatty())
    return trio.run(run_chat, asked, options, os.environ, stdin, terminal, diagnostics)


def _show(arguments: argparse.Namespace, terminal: Terminal, _: Diagnostics) -> int:
    from .commands._show import options_of, run_show

    return run_show(options_of(arguments), terminal)


def _sessions(arguments: argparse.Namespace, terminal: Terminal, _: Diagnostics) -> int:
    from .commands._sessions import SessionsOptions, run_sessions

    return run_sessions(SessionsOptions(folder=arguments.log, json=arguments.json), terminal)


def _fork(arguments: argparse.Namespace, terminal: Terminal, _: Diagnostics) -> int:
    import trio

    from .commands._fork import ForkOptions, run_fork

    options = ForkOptions(
        session=arguments.session,
        folder=arguments.log,
        turn=arguments.turn,
        name=arguments.name,
    )
    return trio.run(run_fork, options, terminal)


def _verify(arguments: argparse.Namespace, terminal: Terminal, _: Diagnostics) -> int:
    from .commands._verify import VerifyOptions, run_verify

    if arguments.all and arguments.sessions:
        raise CommandError("verify: expected sessions or --all, not both", 2)
    options = VerifyOptions(
        sessions=arguments.sessions,
        folder=arguments.log,
        extensions=frozenset(arguments.extensions),
    )
    return run_verify(options, terminal)


def _export(arguments: argparse.Namespace, terminal: Terminal, _: Diagnostics) -> int:
    from .commands._export import ExportOptions, run_export

    options = ExportOptions(
        session=arguments.session, folder=arguments.log, format=arguments.format
    )
    return run_export(options, terminal)


def _explain(arguments: argparse.Namespace, terminal: Terminal, _: Diagnostics) -> int:
    from .commands._explain import ExplainOptions, run_explain

    options = ExplainOptions(
        session=arguments.session,
        folder=arguments.log,
        json=arguments.json,
        turns=arguments.turn,
    )
    return run_explain(options, terminal)


def _replay(arguments: argparse.Namespace, terminal: Terminal, _: Diagnostics) -> int:
    from .commands._replay import ReplayOptions, run_replay

    options = ReplayOptions(
        session=arguments.session,
        folder=arguments.log,
        json=arguments.json,
        number=arguments.number,
        wire=arguments.wire,
        verify=arguments.verify,
    )
    return run_replay(options, terminal)


_COMMANDS = {
    "demo": _demo,
    "chat": _chat,
    "show": _show,
    "sessions": _sessions,
    "fork": _fork,
    "verify": _verify,
    "export": _export,
    "explain": _explain,
    "replay": _replay,
}


def _tools(target: str) -> list[Tool]:
    """The tools that ``module:name`` stands for."""
    import importlib

    from .tools import Tool
    from .vocabulary import chain_text

    module_name, colon, name = target.partition(":")
    if not (colon and module_name and name):
        raise CommandError(f"--tools: expected module:name, got {target!r}", 2)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise CommandError(
            f"--tools: expected a module {module_name!r} in {os.getcwd()} or installed; {error}", 2
        ) from error
    except (Exception, SystemExit) as error:  # the module's own code
        text = f"{type(error).__name__}: {chain_text(error)}"
        raise CommandError(f"--tools: importing {module_name!r} failed: {text}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise CommandError(f"--tools: {module_name!r} has nothing called {name!r}", 2)
        found = getattr(found, part)
    tools: list[Tool] = []
    for tool in found if isinstance(found, (list, tuple)) else [found]:
        if not isinstance(tool, Tool):
            raise CommandError(
                f"--tools: expected {target!r} to be a tool or a list of tools, got "
                f"{type(tool).__name__}; put @terzetto.tool above the function",
                2,
            )
        tools.append(tool)
    return tools
