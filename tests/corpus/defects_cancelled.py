"""Tools that do the wrong thing when they are cancelled."""

import contextlib

import trio

from terzetto import ToolRun
from tests.corpus.cases import defect, world


@defect("swallows-cancelled")
async def retries_whatever_happens() -> str:
    """Try three times."""
    tries = 0
    for _ in range(3):
        try:
            await trio.sleep(1)
            return "done"
        except BaseException:
            tries += 1
            with trio.move_on_after(0.1, shield=True):
                await trio.sleep(0.1)
    return f"gave up after {tries}"


@defect("returns-cancelled")
async def catches_everything() -> str:
    """Wait, and say so."""
    try:
        await trio.sleep(1)
    except:  # noqa: E722
        return "something went wrong"
    return "done"


@defect("returns-cancelled")
async def says_stopped() -> str:
    """Wait until stopped."""
    try:
        await trio.sleep(60)
    except trio.Cancelled:
        return "stopped"
    return "done"


@defect("returns-cancelled")
async def returns_in_finally() -> str:
    """Wait, and always answer."""
    answer = "nothing yet"
    try:
        await trio.sleep(1)
        answer = "done"
    finally:
        return answer  # noqa: B012


@defect("returns-cancelled")
async def suppresses_everything() -> str:
    """Close a door, whatever happens."""
    with contextlib.suppress(BaseException):
        await trio.sleep(1)
    return "closed"


@defect("returns-cancelled")
async def hides_it_in_a_helper() -> str:
    """Ask a helper that never fails."""

    async def safely(seconds):
        try:
            await trio.sleep(seconds)
        except BaseException as error:
            return repr(error)
        return "ok"

    return await safely(3)


@defect("replaces-cancelled")
async def reports_a_runtime_error() -> str:
    """Wait for a reply."""
    try:
        await trio.sleep(5)
    except BaseException as error:
        raise RuntimeError("no reply") from error
    return "reply"


@defect("replaces-cancelled")
async def takes_it_for_a_timeout() -> str:
    """Wait for a reply, with its own idea of a timeout."""
    try:
        await trio.sleep(5)
    except trio.Cancelled:
        raise TimeoutError("it took too long") from None
    return "reply"


@defect("replaces-cancelled")
async def cleans_up_what_is_not_there() -> str:
    """Build a thing, and take it down."""
    thing = None
    try:
        await trio.sleep(1)
        thing = "thing"
    finally:
        thing.upper()
    return thing


@defect("hides-cancelled")
async def child_fails_while_it_stops() -> str:
    """Run two jobs."""

    async def job():
        try:
            await trio.sleep(10)
        except trio.Cancelled:
            raise OSError("the job could not be stopped") from None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(job)
        nursery.start_soon(trio.sleep, 10)
    return "done"


@defect("hides-cancelled")
async def adds_its_own_error_to_the_group() -> str:
    """Run a job."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 10)
            await trio.sleep(1)
    except BaseExceptionGroup as group:
        raise BaseExceptionGroup("failed", [*group.exceptions, ValueError("no job")]) from None
    except trio.Cancelled as error:
        raise BaseExceptionGroup("failed", [error, ValueError("no job")]) from None
    return "done"


@defect("slow-to-stop")
async def says_a_long_goodbye() -> str:
    """Talk to a device."""
    try:
        await trio.sleep(1)
    finally:
        with trio.move_on_after(10, shield=True):
            await trio.sleep(3.2)
    return "done"


@defect("slow-to-stop")
async def finishes_its_round() -> str:
    """Visit ten rooms."""
    rooms = 0
    with trio.move_on_after(30) as scope:
        scope.shield = True
        for _ in range(10):
            await trio.sleep(0.5)
            rooms += 1
    return f"{rooms} rooms"


@defect("slow-to-stop")
async def drains_before_it_stops() -> str:
    """Move ten boxes."""
    try:
        for _ in range(10):
            await trio.sleep(1)
    except trio.Cancelled:
        for _ in range(10):
            with trio.move_on_after(0.9, shield=True):
                await trio.sleep(0.4)
        raise
    return "moved"


@defect("never-stops")
async def waits_for_a_goodbye() -> str:
    """Talk to a device that says goodbye."""
    goodbye = trio.Event()
    try:
        await trio.sleep(1)
        goodbye.set()
    finally:
        with trio.CancelScope(shield=True):
            await goodbye.wait()
    return "done"


@defect("never-stops")
async def tries_until_it_works() -> str:
    """Try until it works."""
    worked = False
    while not worked:
        try:
            await trio.sleep(1)
            worked = True
        except BaseException:
            continue
    return "worked"


@defect("shields-forever")
async def must_not_be_disturbed() -> str:
    """Print a page."""
    with trio.CancelScope(shield=True):
        await trio.sleep(0.5)
    return "printed"


@defect("shields-forever")
async def shields_later() -> str:
    """Print a page."""
    with trio.CancelScope() as scope:
        await trio.sleep(0.5)
        scope.shield = True
        await trio.sleep(0.5)
    return "printed"


@defect("shields-forever")
async def closes_without_a_limit() -> str:
    """Send a page."""
    send, receive = trio.open_memory_channel[str](1)
    try:
        await send.send("page")
        return await receive.receive()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.2)
            await send.aclose()
            await receive.aclose()


@defect("effect-after-cancel")
async def mails_in_finally() -> str:
    """Do something and tell the boss."""
    try:
        await trio.sleep(1)
    finally:
        world.effects.note("sent a mail")
    return "done"


@defect("effect-after-cancel")
async def leaves_it_to_a_thread() -> str:
    """Send a mail with a library that blocks."""
    await trio.to_thread.run_sync(world.effects.note, "sent a mail", abandon_on_cancel=True)
    return "sent"


@defect("effect-after-cancel")
async def books_it_anyway() -> str:
    """Book a table."""
    with contextlib.suppress(trio.Cancelled):
        await trio.sleep(1)
    world.effects.note("booked a table")
    return "booked"


@defect("effect-after-cancel", around=world.files, probe=world.names)
async def saves_when_it_is_stopped(run: ToolRun) -> str:
    """Write a report."""
    try:
        await trio.sleep(1)
    finally:
        (world.folder / "report.txt").write_text(run.name)
    return "written"


@defect("half-done", around=world.files, probe=world.names)
async def leaves_a_draft() -> str:
    """Save a page."""
    draft = trio.Path(world.folder / "page.draft")
    await draft.write_text("page")
    await draft.rename(world.folder / "page.txt")
    return "saved"


@defect("half-done", probe=lambda: dict(world.values))
async def moves_money() -> str:
    """Move money from a to b."""
    world.values["a"] -= 5
    await trio.sleep(0.1)
    world.values["b"] += 5
    return "moved"


@defect("half-done", around=world.files, probe=world.names)
async def empties_before_it_fills() -> str:
    """Write a page anew."""
    (world.folder / "a.txt").write_text("")
    await trio.sleep(0.1)
    (world.folder / "a.txt").write_text("new")
    return "written"
