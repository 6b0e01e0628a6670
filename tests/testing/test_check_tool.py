"""What `check_tool` says, where, and what it refuses; the corpus shows what it finds."""

import inspect
import threading
import time

import pytest
import trio

from terzetto import InvalidValue, tool
from terzetto.testing import VERDICTS, CheckReport, Defects, Effects, Verdict, check_tool


def line_of(fn, words):
    """The line of this file on which *fn* says *words*."""
    lines, first = inspect.getsourcelines(fn)
    return first + next(number for number, line in enumerate(lines) if words in line)


@tool
async def stubborn(seconds: float) -> str:
    """Wait."""
    try:
        await trio.sleep(seconds)
    except trio.Cancelled:
        return "stopped"
    return "waited"


@tool
async def patient(seconds: float) -> str:
    """Wait."""
    await trio.sleep(seconds)
    return "waited"


def test_verdict_names_the_line_that_swallowed():
    report = check_tool(stubborn, [{"seconds": 5}], engine=False)
    line = line_of(stubborn.body, "except trio.Cancelled")
    [verdict] = report.verdicts
    assert verdict.kind == "returns-cancelled"
    assert verdict.place == f"tests/testing/test_check_tool.py:{line}"
    assert f"test_check_tool.py:{line}" in verdict.text
    assert "'stopped'" in verdict.text
    assert report.kinds == ("returns-cancelled",)


def test_verdict_names_the_line_in_a_helper_of_a_helper():
    async def inner():
        try:
            await trio.sleep(1)
        except BaseException:
            pass

    async def outer():
        await inner()
        await trio.sleep(1)

    @tool
    async def deep() -> str:
        """Wait."""
        try:
            await outer()
        except BaseException:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return "stopped"
        return "waited"

    report = check_tool(deep, [{}], engine=False)
    line = line_of(deep.body, "except BaseException")
    assert {verdict.place for verdict in report.verdicts} == {
        f"tests/testing/test_check_tool.py:{line}"
    }
    assert report.kinds == ("swallows-cancelled",)


def test_report_raises_with_its_text():
    report = check_tool(stubborn, [{"seconds": 5}], engine=False)
    with pytest.raises(Defects) as caught:
        report.raise_for_verdicts()
    assert caught.value.report is report
    assert str(caught.value) == str(report)
    assert str(report).startswith("tool 'stubborn': 1 verdict (")
    assert str(report).splitlines()[1].startswith("- returns-cancelled: not cancel-safe: ")


def test_right_tool_is_cut_short_everywhere_and_explored_in_an_engine():
    report = check_tool(patient, [{"seconds": 3600}])
    report.raise_for_verdicts()
    alone = check_tool(patient, [{"seconds": 3600}], engine=False)
    assert report.points > alone.points > 0
    assert report.verdicts == ()
    assert str(report).startswith("tool 'patient': nothing wrong (")


def test_engine_has_its_say():
    """A Ctrl-C that comes inside a body is one of the sources that only an engine has."""
    seen = []

    @tool
    async def looks() -> str:
        """Look."""
        await trio.sleep(1)
        seen.append(trio.lowlevel.current_root_task().child_nurseries)
        return "looked"

    report = check_tool(looks, [{}])
    assert report.verdicts == ()
    assert report.runs > report.points > 4


@pytest.mark.parametrize(
    ("calls", "options", "said"),
    [
        ([], {}, "expected at least one mapping"),
        ([{"seconds": "soon"}], {}, "patient refuses"),
        ([{}], {}, "patient refuses"),
        ([{"seconds": object()}], {}, "in JSON"),
        ([{"seconds": 1}], {"ignore": ["lazy"]}, "there is no verdict 'lazy'"),
    ],
)
def test_bad_input_is_refused(calls, options, said):
    with pytest.raises(InvalidValue, match=said):
        check_tool(patient, calls, **options)


def test_what_is_no_tool_is_refused():
    with pytest.raises(InvalidValue, match="expected a Tool"):
        check_tool(lambda: 42, [{}])


def test_ignored_kinds_are_not_told():
    report = check_tool(stubborn, [{"seconds": 5}], engine=False, ignore=["returns-cancelled"])
    assert report.verdicts == ()


def test_failing_call_is_a_verdict_unless_it_may_fail():
    @tool
    async def fails() -> str:
        """Fail."""
        await trio.sleep(1)
        raise LookupError("no such page")

    [verdict] = check_tool(fails, [{}], engine=False).verdicts
    line = line_of(fails.body, "raise LookupError")
    assert verdict == Verdict(
        kind="fails",
        text=f"() raised LookupError: no such page at tests/testing/test_check_tool.py:{line}",
        place=f"tests/testing/test_check_tool.py:{line}",
    )
    assert check_tool(fails, [{}], engine=False, may_fail=True).verdicts == ()


def test_error_of_what_is_around_is_raised():
    class Around:
        async def __aenter__(self):
            raise OSError("no database")

        async def __aexit__(self, *error):
            pass

    with pytest.raises(OSError, match="no database"):
        check_tool(patient, [{"seconds": 1}], around=Around)


def test_keyboard_interrupt_of_the_user_stops_the_check():
    @tool
    async def interrupted() -> str:
        """Be interrupted."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_tool(interrupted, [{}])


def test_check_leaves_nothing_behind():
    """No thread of its own, no patch, no variable, no process."""
    import os
    import subprocess

    from trio import _threads

    before = subprocess.Popen.__init__, _threads.start_thread_soon, dict(os.environ)
    threads = threading.active_count()
    check_tool(stubborn, [{"seconds": 5}])

    @tool
    async def blocks() -> str:
        """Block."""
        time.sleep(0.15)  # noqa: ASYNC251
        return "blocked"

    assert check_tool(blocks, [{}], engine=False).kinds == ("blocks",)
    assert (subprocess.Popen.__init__, _threads.start_thread_soon, dict(os.environ)) == before
    assert threading.active_count() == threads


def test_time_is_virtual_while_nothing_waits_for_the_world():
    seen = []

    @tool
    async def sleeps() -> str:
        """Sleep for a day."""
        began = time.monotonic()
        await trio.sleep(86_400)
        seen.append(time.monotonic() - began)
        return "awake"

    assert check_tool(sleeps, [{}], engine=False).verdicts == ()
    assert max(seen) < 3600


def test_deadline_of_a_thread_waits_for_the_thread():
    """A thread that works is no idle time: the timeout around it does not fire early."""
    fired = []

    @tool
    async def careful() -> str:
        """Ask a thread, at most for a minute."""
        with trio.move_on_after(60) as scope:
            await trio.to_thread.run_sync(time.sleep, 0.05, abandon_on_cancel=False)
        fired.append(scope.cancelled_caught)
        return "asked"

    report = check_tool(careful, [{}], engine=False)
    assert report.verdicts == ()
    assert not any(fired)


def test_effects_of_a_task_are_late_only_after_that_task_heard():
    """A commit that another task makes under a bounded shield is no late effect."""
    effects = Effects()

    @tool
    async def commits() -> str:
        """Commit in one task while another one waits."""

        async def commit():
            with trio.move_on_after(0.5, shield=True):
                await trio.sleep(0.1)
                effects.note("committed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            nursery.start_soon(trio.sleep, 1)
        return "committed"

    assert check_tool(commits, [{}], effects=effects, engine=False).verdicts == ()


def test_effects_are_told_in_order_and_cleared():
    effects = Effects()
    effects.note("a")
    effects.undo("b")
    effects.read("c")
    effects.wrote("d")
    assert effects.entries == ("a", "b", "read c", "wrote d")
    effects.clear()
    assert not effects.entries


def test_many_calls_have_their_own_verdicts():
    @tool
    async def sometimes(wait: bool) -> str:
        """Wait, sometimes."""
        if wait:
            await trio.Event().wait()
        await trio.sleep(1)
        return "done"

    report = check_tool(sometimes, [{"wait": False}, {"wait": True}], engine=False)
    [verdict] = report.verdicts
    assert verdict.kind == "never-ends"
    assert verdict.text.startswith("(wait=True) does not end: it waits for ever; waits at ")


def test_every_kind_has_a_meaning():
    assert all(VERDICTS.values())
    report = CheckReport(subject="tool 'a'", runs=1, points=0)
    report.raise_for_verdicts()
    assert str(report) == "tool 'a': nothing wrong (1 runs, 0 of them cut short)"
