"""What a line means that is typed in a terminal: a prompt, a steer, a redirection, a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

from attrs import evolve, frozen

from ..agent import Agent
from ._chat_view import View
from ._table import count
from ._terminal import one_line

Next: TypeAlias = Literal["stay", "leave"]


@frozen
class Talk:
    """What a line acts on."""

    agent: Agent
    view: View

    @property
    def busy(self) -> bool:
        return self.agent.status == "running"

    def enter(self, line: str) -> Next:
        """Do what *line* says. Blank lines say nothing; a leading blank makes any line text."""
        text = line.strip()
        if not text:
            return "stay"
        if line.startswith("/"):
            return self._command(text)
        if line.startswith("!"):
            self._redirect(text[1:].strip())
        elif self.busy:
            self.view.typed(self.agent.steer(text))
            self.view.note(f"steered: {text}")
        else:
            self.view.typed(self.agent.followup(text))
        return "stay"

    def _redirect(self, text: str) -> None:
        if not text:
            self.view.note("! wants what to do instead; /cancel only stops")
            return
        if self.busy:
            self.view.note(f"redirected: {text}")
        self.view.typed(self.agent.interrupt(text))

    def _command(self, text: str) -> Next:
        name, _, rest = text[1:].partition(" ")
        command = COMMANDS.get(name)
        if command is None:
            self.view.note(f"no command /{name}; /help lists them, a leading blank sends the line")
            return "stay"
        return command.run(self, rest.strip()) or "stay"


@frozen
class Command:
    """*usage* is what stands behind the name, *help* one line."""

    usage: str
    help: str
    run: Callable[[Talk, str], Next | None]


def _help(talk: Talk, _: str) -> None:
    rows = [("text", "a prompt; while the model works, a remark for its next step (steer)")]
    rows.append(("!text", "stop what runs and go on with this instead"))
    rows += [(f"/{name} {c.usage}".strip(), c.help) for name, c in COMMANDS.items()]
    rows += [("Ctrl-C", "interrupt, and the second time leave"), ("Ctrl-D", "leave")]
    width = max(len(keys) for keys, _ in rows)
    talk.view.end_text()
    with talk.view.terminal.above():
        for keys, what in rows:
            talk.view.terminal.line(f"  {keys:<{width}}  {what}", "dim")


def _queue(talk: Talk, text: str) -> None:
    if text:
        talk.agent.followup(text)
        talk.view.note(f"queued: {text}")
        return
    inbox = talk.agent.inbox
    waiting = [*inbox.next_step, *inbox.next_turn]
    for message in waiting:
        talk.view.note(f"waiting: {message.text}")
    if not waiting:
        talk.view.note("nothing is waiting; /queue TEXT adds a prompt for the next turn")


def _model(talk: Talk, text: str) -> None:
    """A choice is recorded, so a resume keeps it."""
    agent, view = talk.agent, talk.view
    current = agent.model.current()
    provider = current.provider if current is not None else view.route.provider
    if text:
        name, _, effort = text.partition(" ")
        current = agent.model.select(provider, name, effort.strip() or None)
        view.route = evolve(view.route, model=name)
    if current is not None:
        effort = f", effort {current.effort}" if current.effort else ""
        view.note(f"model {current.model} of {current.provider}{effort}")


def _tools(talk: Talk, _: str) -> None:
    tools = talk.agent.scope.tools.visible()
    for name in sorted(tools):
        about = one_line(tools[name].description.partition("\n")[0])
        talk.view.note(f"{name}: {about}" if about else name)
    if not tools:
        talk.view.note("no tools; --tools MODULE:NAME gives some")


def _history(talk: Talk, _: str) -> None:
    history = talk.agent.history()
    talk.view.recall(history, whole=True)
    if not history:
        talk.view.note("nothing was said yet")


def _cancel(talk: Talk, _: str) -> None:
    if talk.busy:
        talk.agent.cancel()
    else:
        waiting = len(talk.agent.inbox)
        talk.agent.cancel()
        talk.view.note(f"nothing runs; {count(waiting, 'message')} dropped")


def _quit(_: Talk, __: str) -> Next:
    return "leave"


COMMANDS: Final[Mapping[str, Command]] = {
    "queue": Command("[TEXT]", "a prompt for the turn after this one; or list them", _queue),
    "cancel": Command("", "stop what runs, as Ctrl-C does; what came is kept", _cancel),
    "model": Command("[NAME [EFFORT]]", "which model is asked; or another one from now on", _model),
    "tools": Command("", "what the model can call", _tools),
    "history": Command("", "the whole conversation", _history),
    "quit": Command("", "leave when what runs has ended, as Ctrl-D does", _quit),
    "help": Command("", "this list", _help),
}
