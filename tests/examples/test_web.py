"""The web example, looked at with a real browser; its model is a server in the test.

The model stops at gates, so each test does its part at a known moment: nothing sleeps, and
whatever is waited for is a condition of the page.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import define, field
from tests.commands import linux_like, of_type, read_log
from tests.examples.browser import browse
from tests.examples.processes import Program, key, program

from terzetto.llm.loopback import LoopbackServer, serve_openai
from terzetto.llm.scripted import Entry, Gate, ScriptSource, answer, call
from terzetto.vocabulary import Request, ToolSource, UserMessage, UserSource

pytestmark = linux_like
Page = Any  # Playwright's, which need not be installed

WORKING, IDLE = "#status[data-status=running]", "#status[data-status=idle]"
ANSWERS = "#log > .answer"

# What is on the page, for comparing one with another.
SNAPSHOT = """
    () => [...document.querySelectorAll("#log > *, #pending > *")].map(
      (one) => one.className + " | " + one.innerText.replace(/\\s+/g, " ")
        + " | " + [...one.querySelectorAll(".call")].map((card) => card.dataset.state))
"""


def becomes(page: Any, expected: list[str]) -> None:
    """A page fills while its events come in: wait for *expected*, and say what came instead."""
    from playwright.sync_api import TimeoutError as TooLate

    same = f"(expected) => JSON.stringify(({SNAPSHOT})()) === JSON.stringify(expected)"
    with contextlib.suppress(TooLate):
        page.wait_for_function(same, arg=expected)
    assert page.evaluate(SNAPSHOT) == expected


@define(eq=False)
class Shop:
    """The example's server, its model, and the page's address."""

    model: LoopbackServer
    folder: Path
    url: str = field(init=False)
    _program: Program = field(init=False)

    @asynccontextmanager
    async def served(self, *options: str, port: str = "0") -> AsyncIterator[Program]:
        given = ("--port", port, "--pace", "0.02", *options)
        env = key(self.model.base_url)
        async with program("web/server.py", *given, cwd=self.folder, **env) as started:
            self.url = (await started.said(r"serving (http://127\.0\.0\.1:\d+);"))[1]
            self._program = started
            yield started

    async def look(self, scene: Callable[..., None], *arguments: object) -> None:
        await browse(scene, self, *arguments, profile=self.folder / "profile")

    def open(self, *gates: str) -> None:
        """For scenes: let the model go on."""
        trio.from_thread.run_sync(self.model.gates.open, *gates)

    def logs(self) -> list[list[dict]]:
        """Every session's events, oldest session first."""
        paths = (self.folder / "web-sessions").glob("*.jsonl")
        return sorted((read_log(path) for path in paths), key=lambda log: log[0]["time"])


@asynccontextmanager
async def shop(folder: Path, script: ScriptSource) -> AsyncIterator[Shop]:
    async with serve_openai(script) as model:
        yield Shop(model, folder)


def texts(log: Sequence[dict], kind: str) -> list[str]:
    """The texts of the messages of a kind, in order."""
    found = []
    for event in of_type(log, kind):
        message = event["data"]["message"] if "message" in event["data"] else event["data"]
        found.append("".join(b["text"] for b in message["content"] if b["type"] == "text"))
    return found


def endings(log: Sequence[dict]) -> list[str]:
    return [event["data"]["reason"]["kind"] for event in of_type(log, "turn/end")]


def new_page(browser: Any, url: str) -> Page:
    page = browser.new_page()
    page.goto(url)
    return page


def say(page: Page, text: str, button: str = "#send") -> None:
    page.fill("#text", text)
    page.click(button)


def gate_calls(page: Page, name: str) -> list[str]:
    """Every state that the cards of this tool had."""
    seen = page.evaluate("window.seen")
    now = page.locator(f".call[data-name={name}]").evaluate_all(
        "all => all.map(x => x.dataset.state)"
    )
    return [state for card, state in seen if card == name and state] + now


# --- one conversation ---------------------------------------------------------------------


async def test_a_conversation_with_tools_and_steering(tmp_path: Path) -> None:
    script = [
        answer("Let me ", Gate("look"), "look.", call("find_order", number=1042)),
        answer("It is ", Gate("tell"), "on its way."),
    ]

    def scene(browser: Any, shop: Shop) -> None:
        from playwright.sync_api import expect

        page = new_page(browser, shop.url)
        expect(page.locator("#empty")).to_be_visible()
        say(page, "Where is order 1042?")
        expect(page.locator(ANSWERS)).to_have_text("Let me")  # it streams: the rest is not there
        expect(page.locator(WORKING)).to_be_visible()
        expect(page.locator("#send")).to_have_text("Steer")
        say(page, "Quickly, please.")
        waiting = page.locator("#pending .waiting")
        expect(waiting).to_contain_text("waits for the next step")
        expect(waiting).to_contain_text("Quickly, please.")
        expect(page.locator("#log .user")).to_have_count(1)

        shop.open("look")
        expect(page.locator("#log .user").nth(1)).to_contain_text("steered in")
        expect(waiting).to_have_count(0)
        expect(page.locator(".call")).to_have_attribute("data-state", "done")
        page.click(".call summary")
        expect(page.locator(".call pre")).to_contain_text("TZ1042X")
        expect(page.locator(ANSWERS).nth(1)).to_have_text("It is")
        shop.open("tell")
        expect(page.locator(ANSWERS).nth(1)).to_have_text("It is on its way.")
        expect(page.locator(IDLE)).to_be_visible()
        expect(page.locator("#send")).to_have_text("Send")
        states = gate_calls(page, "find_order")
        assert [s for n, s in enumerate(states) if s not in states[:n]] == [
            "writing",
            "waiting",
            "running",
            "done",
        ]
        assert "on its way" in page.inner_text("#log")

    async with shop(tmp_path, script) as one, one.served() as running:
        await one.look(scene)
        running.send(signal.SIGTERM)
        assert await running.ended() == 0
    [log] = one.logs()
    assert texts(log, "user/message") == ["Where is order 1042?", "Quickly, please."]
    assert texts(log, "assistant/message") == ["Let me look.", "It is on its way."]
    assert [event["data"]["turn"] for event in of_type(log, "step/start")] == [1, 1]
    assert endings(log) == ["completed"]


async def test_interrupting_keeps_what_had_arrived_and_goes_on(tmp_path: Path) -> None:
    script = [answer("It left on Monday ", Gate("never"), "and then"), answer("Thursday.")]

    def scene(browser: Any, shop: Shop) -> None:
        from playwright.sync_api import expect

        page = new_page(browser, shop.url)
        say(page, "Where is it?")
        expect(page.locator(ANSWERS)).to_have_text("It left on Monday")
        expect(page.locator("#interrupt")).to_be_disabled()
        say(page, "Only the day.", "#interrupt")
        expect(page.locator(".answer.interrupted p")).to_have_text("It left on Monday ")
        expect(page.locator(".answer.interrupted .mark")).to_contain_text("interrupted here")
        expect(page.locator("#log .user").nth(1)).to_contain_text("interrupted with")
        expect(page.locator(ANSWERS).nth(1)).to_have_text("Thursday.")
        expect(page.locator(IDLE)).to_be_visible()
        before = page.evaluate(SNAPSHOT)
        page.reload()
        expect(page.locator(ANSWERS).nth(1)).to_have_text("Thursday.")
        becomes(page, before)

    async with shop(tmp_path, script) as one, one.served():
        await one.look(scene)
    [log] = one.logs()
    cut, whole = of_type(log, "assistant/message")
    assert cut["data"]["interrupted"] is True
    assert texts(log, "assistant/message") == ["It left on Monday ", "Thursday."]
    assert "interrupted" not in whole["data"]
    assert endings(log) == ["completed"], "the same turn went on"


async def test_interrupting_tools_stops_those_that_run(tmp_path: Path) -> None:
    calls = call("find_order", number=1), call("check_stock", item="lamp")
    script = [answer("Looking. ", *calls), answer("As you like.")]

    def scene(browser: Any, shop: Shop) -> None:
        from playwright.sync_api import expect

        page = new_page(browser, shop.url)
        page.fill("#text", "first line")
        page.press("#text", "Shift+Enter")
        page.locator("#text").press_sequentially("second line")
        page.press("#text", "Enter")
        expect(page.locator("#log .user p")).to_have_text("first line\nsecond line")
        expect(page.locator(".call[data-state=running]")).to_have_count(2)
        say(page, "Never mind.", "#interrupt")
        expect(page.locator(".call[data-state=stopped]")).to_have_count(2)
        expect(page.locator("#log .user").nth(1)).to_contain_text("interrupted with")
        expect(page.locator(ANSWERS).nth(1)).to_have_text("As you like.")
        expect(page.locator(IDLE)).to_be_visible()

    async with shop(tmp_path, script) as one, one.served("--pace", "3600"):
        await one.look(scene)
    [log] = one.logs()
    results = of_type(log, "tool/result")
    assert [result["data"]["error"]["code"] for result in results] == ["ABORTED", "ABORTED"]
    assert texts(log, "user/message") == ["first line\nsecond line", "Never mind."]
    assert endings(log) == ["completed"]


async def test_stop_ends_the_turn_and_clears_what_waits(tmp_path: Path) -> None:
    script = [answer("Well, ", Gate("never"), "no")]

    def scene(browser: Any, shop: Shop) -> None:
        from playwright.sync_api import expect

        page = new_page(browser, shop.url)
        say(page, "Tell me a story.")
        expect(page.locator(ANSWERS)).to_have_text("Well,")
        say(page, "A long one.")
        expect(page.locator("#pending .waiting")).to_have_count(1)
        page.click("#stop")
        expect(page.locator(".note[data-reason=stopped]")).to_have_text("stopped by you")
        expect(page.locator(".note[data-reason=discarded]")).to_have_text("discarded: A long one.")
        expect(page.locator("#pending .waiting")).to_have_count(0)
        expect(page.locator(".answer.interrupted p")).to_have_text("Well, ")
        expect(page.locator("#stop")).to_be_disabled()

    async with shop(tmp_path, script) as one, one.served():
        await one.look(scene)
        assert one.model.model.attempts == 1
    [log] = one.logs()
    [end] = of_type(log, "turn/end")
    assert end["data"]["reason"] == {"kind": "aborted", "reason": {"kind": "user"}}


# --- several pages ------------------------------------------------------------------------


def by_prompt(request: Request) -> Entry:
    """Answers that name their session's prompt, and stop in the middle at its gate."""
    users = [one for one in request.messages if isinstance(one, UserMessage)]
    prompt = next(one.text for one in users if isinstance(one.source, UserSource))
    if isinstance(users[-1].source, ToolSource):
        return answer(f"{prompt}: ", Gate(prompt), "that is all.")
    return answer("Looking. ", call("find_order", number=len(prompt)))


async def test_two_sessions_side_by_side_in_two_tabs_and_one_in_two(tmp_path: Path) -> None:
    def scene(browser: Any, shop: Shop) -> None:
        from playwright.sync_api import expect

        left, right = new_page(browser, shop.url), new_page(browser, shop.url)
        say(left, "left")
        expect(left.locator(ANSWERS).nth(1)).to_have_text("left:")
        say(right, "right")
        expect(right.locator(ANSWERS).nth(1)).to_have_text("right:")
        for page in (left, right):  # both run, and every tab sees that
            expect(page.locator("#sessions li[data-status=running]")).to_have_count(2)
        twin = new_page(browser, left.url)
        expect(twin.locator(ANSWERS).nth(1)).to_have_text("left:")
        say(twin, "said by the twin")
        expect(left.locator("#pending .waiting")).to_contain_text("said by the twin")
        expect(right.locator("#pending .waiting")).to_have_count(0)

        shop.open("left")
        for page in (left, twin):
            expect(page.locator(ANSWERS).nth(1)).to_have_text("left: that is all.")
            expect(page.locator("#log .user").nth(1)).to_contain_text("said by the twin")
        expect(right.locator("#sessions li[data-status=running]")).to_have_count(1)
        expect(right.locator(ANSWERS).nth(1)).to_have_text("right:")
        shop.open("right")
        expect(right.locator(ANSWERS).nth(1)).to_have_text("right: that is all.")
        for page in (left, twin, right):
            expect(page.locator(IDLE)).to_be_visible()
        becomes(twin, left.evaluate(SNAPSHOT))
        assert "left" not in right.inner_text("#log")
        right.click("#sessions a:has-text('left')")  # and one tab can go to the other session
        expect(right.locator("#title")).to_have_text("left")
        expect(right.locator(".call")).to_have_count(left.locator(".call").count())
        becomes(right, left.evaluate(SNAPSHOT))

    async with shop(tmp_path, by_prompt) as one, one.served():
        await one.look(scene)
    first, second = one.logs()
    assert texts(first, "user/message")[:2] == ["left", "said by the twin"]
    assert texts(second, "user/message") == ["right"]


async def test_a_reload_in_mid_stream_shows_everything_once(tmp_path: Path) -> None:
    script = [
        answer("Looking. ", call("check_stock", item="lamp")),
        answer("One, two, ", Gate("more"), "three, ", Gate("rest"), "four."),
    ]

    def scene(browser: Any, shop: Shop) -> None:
        from playwright.sync_api import expect

        page, still = new_page(browser, shop.url), browser.pages[0]
        say(page, "Count.")
        last = page.locator(ANSWERS).nth(1)
        expect(last).to_have_text("One, two,")
        still.goto(page.url)
        before = page.evaluate(SNAPSHOT)
        page.reload()
        expect(last).to_have_text("One, two,")
        becomes(page, before)
        shop.open("more")
        expect(last).to_have_text("One, two, three,")
        page.reload()
        expect(last).to_have_text("One, two, three,")
        shop.open("rest")
        for one in (page, still):
            expect(one.locator(ANSWERS).nth(1)).to_have_text("One, two, three, four.")
            expect(one.locator(IDLE)).to_be_visible()
        becomes(still, page.evaluate(SNAPSHOT))
        assert page.locator(".call").count() == page.locator("#log .user").count() == 1

    async with shop(tmp_path, script) as one, one.served():
        await one.look(scene)
        assert one.model.model.attempts == 2
    [log] = one.logs()
    assert endings(log) == ["completed"]


# --- the server's end ---------------------------------------------------------------------


async def test_a_page_outlives_a_killed_server(tmp_path: Path) -> None:
    """It comes back by itself, to a log that may be shorter, and shows that one once."""
    script = [
        answer("Looking. ", call("check_stock", item="lamp")),
        answer("There are ", Gate("never"), "many"),
        answer("As I said."),
    ]

    def scene(browser: Any, shop: Shop, restart: Callable[[], None]) -> None:
        from playwright.sync_api import expect

        page = new_page(browser, shop.url)
        say(page, "How many lamps?")
        expect(page.locator(ANSWERS).nth(1)).to_have_text("There are")
        trio.from_thread.run(restart)
        expect(page.locator(".note[data-reason=crashed]")).to_be_visible()
        expect(page.locator("body[data-connection=live]")).to_have_count(1)
        expect(page.locator(IDLE)).to_be_visible()
        assert page.locator(".call").count() == page.locator("#log .user").count() == 1
        say(page, "And now?")
        expect(page.locator("#log > .answer:last-child")).to_have_text("As I said.")
        before = page.evaluate(SNAPSHOT)
        page.reload()
        expect(page.locator("#log > .answer:last-child")).to_have_text("As I said.")
        becomes(page, before)

    async with shop(tmp_path, script) as one, trio.open_nursery() as nursery:
        stop = trio.Event()

        async def restart() -> None:
            first.send(signal.SIGKILL)
            await first.ended()
            await nursery.start(second_run)

        async def second_run(task_status: trio.TaskStatus[None]) -> None:
            async with one.served(port=one.url.rpartition(":")[2]):
                task_status.started()
                await stop.wait()

        async with one.served() as first:
            await one.look(scene, restart)
        stop.set()
    [log] = one.logs()
    assert endings(log) == ["interrupted", "completed"]


async def test_stopping_the_server_closes_every_turn_and_tells_the_pages(tmp_path: Path) -> None:
    script = [answer("Once ", Gate("never"), "upon")]

    def scene(browser: Any, shop: Shop) -> None:
        from playwright.sync_api import expect

        page, list_only = new_page(browser, shop.url), new_page(browser, shop.url)
        say(page, "A story.")
        expect(page.locator(ANSWERS)).to_have_text("Once")
        say(page, "A good one.")
        expect(page.locator("#pending .waiting")).to_have_count(1)
        expect(list_only.locator("#sessions li")).to_have_count(1)
        shop._program.send(signal.SIGINT)
        expect(page.locator(".note[data-reason=stopped]")).to_contain_text("the server")
        expect(page.locator(".answer.interrupted p")).to_have_text("Once ")
        expect(page.locator("body[data-connection=lost]")).to_have_count(1)
        assert trio.from_thread.run(shop._program.ended) == 0  # with both pages still open

    async with shop(tmp_path, script) as one, one.served() as running:
        await one.look(scene)
    assert running.out.endswith("web: stopping\nweb: stopped\n")
    assert "Traceback" not in running.out
    [log] = one.logs()
    assert log[-1]["type"] == "turn/end"
    assert log[-1]["data"]["reason"] == {"kind": "aborted", "reason": {"kind": "disposed"}}
    [steered] = of_type(log, "agent/inbox/spliced", target="next-step")
    assert steered["data"]["inserted"][0]["content"][0]["text"] == "A good one.", "it is kept"


# --- what others write --------------------------------------------------------------------


async def test_text_is_never_taken_for_html(tmp_path: Path) -> None:
    evil = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
    script = [answer(f"Model {evil}", call("leave_note", text=evil)), answer("Done.")]

    def scene(browser: Any, shop: Shop) -> None:
        from playwright.sync_api import expect

        page = new_page(browser, shop.url)
        say(page, f"User {evil}")
        expect(page.locator(IDLE)).to_be_visible()
        expect(page.locator(ANSWERS).nth(1)).to_have_text("Done.")
        expect(page.locator("#log .user p")).to_have_text(f"User {evil}")
        expect(page.locator(".answer p").first).to_have_text(f"Model {evil}")
        expect(page.locator("#sessions b")).to_contain_text("User <img")
        assert page.locator("#log img, #log script, #sessions img").count() == 0
        assert page.evaluate("window.hacked") is None

    async with shop(tmp_path, script) as one, one.served():
        await one.look(scene)


async def test_a_failed_turn_says_why(tmp_path: Path) -> None:
    def scene(browser: Any, shop: Shop) -> None:
        from playwright.sync_api import expect

        page = new_page(browser, shop.url)
        say(page, "Hello.")
        expect(page.locator(".note[data-reason=failed]")).to_contain_text("failed:")
        expect(page.locator(IDLE)).to_be_visible()
        page.goto(f"{shop.url}/#no-such-session")
        expect(page.locator("#hint.error")).to_have_text("there is no such session")

    async with shop(tmp_path, []) as one, one.served():
        await one.look(scene)
    [log] = one.logs()
    assert endings(log) == ["error"]
