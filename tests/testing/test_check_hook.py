"""What `check_hook` says of listeners that are wrong, and that it leaves the others alone."""

import time

import pytest
import trio
import trio.lowlevel
from attrs import evolve

from terzetto import Allow, CallConfig, Deny, InvalidValue
from terzetto.agent import Enter, Reject, Retry
from terzetto.testing import Effects, check_hook
from terzetto.testing._hook_samples import HOOKS, SERIALS, WATERFALLS

effects = Effects()

# --- wrong ------------------------------------------------------------------------------------


async def twice(value, proceed):
    await proceed()
    return await proceed()


async def never(value, proceed):
    return Enter(value.messages)


async def allows_alone(value, proceed):
    return Allow()


async def overrules(value, proceed):
    await proceed()
    return Allow()


async def forgets_to_return(value, proceed):
    await proceed()


async def wrong_type(value, proceed):
    await proceed()
    return "yes"


async def another_route(value, proceed):
    config = await proceed()
    return evolve(config, model="another")


async def another_selection(value, proceed):
    assembly = await proceed()
    return evolve(assembly, selection=evolve(assembly.selection, model="another"))


async def drops_the_series(value, proceed):
    decision = await proceed()
    return Enter((*decision.messages,))


async def proceeds_with_the_config(value, proceed):
    return await proceed(value.config)


async def swallows(value, proceed):
    try:
        return await proceed()
    except BaseException:
        return Deny("it was stopped")


async def replaces(value, proceed):
    try:
        return await proceed()
    except BaseException:
        raise ValueError("it was stopped") from None


async def says_goodbye(value, proceed):
    try:
        return await proceed()
    finally:
        with trio.move_on_after(9, shield=True):
            await trio.sleep(5)


async def shields(value, proceed):
    with trio.CancelScope(shield=True):
        return await proceed()


async def audits_late(value, proceed):
    try:
        return await proceed()
    finally:
        effects.note("wrote the audit")


async def asks_for_long(value, proceed):
    await trio.sleep(60)
    return await proceed()


async def blocks(value, proceed):
    time.sleep(0.15)  # noqa: ASYNC251
    return await proceed()


async def starts_a_task(value, proceed):
    trio.lowlevel.spawn_system_task(trio.sleep, 1000)
    return await proceed()


def not_async(value, proceed):
    return Allow()


async def raises(value, proceed):
    raise LookupError("no policy")


async def async_observer(value):
    await trio.lowlevel.checkpoint()


def plain_serial(value):
    return None


async def stream_twice(value, proceed):
    await proceed(value)
    return await proceed(value)


class _Cut:
    """A stream that ends too early."""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None

    def __aiter__(self):
        return self

    async def __anext__(self):
        raise StopAsyncIteration


async def cuts_the_stream(value, proceed):
    await proceed()
    return _Cut()


@pytest.mark.parametrize(
    ("hook", "listener", "kind"),
    [
        ("pre_step", twice, "proceeds-twice"),
        ("stream", stream_twice, "proceeds-twice"),
        ("pre_step", never, "never-proceeds"),
        ("tool_pre_execute", allows_alone, "never-proceeds"),
        ("tool_pre_execute", overrules, "wrong-decision"),
        ("tool_post_execute", forgets_to_return, "wrong-decision"),
        ("request_error", wrong_type, "wrong-decision"),
        ("request", another_route, "wrong-decision"),
        ("assemble", another_selection, "wrong-decision"),
        ("pre_step", drops_the_series, "wrong-decision"),
        ("request", proceeds_with_the_config, "wrong-decision"),
        ("stream", wrong_type, "wrong-decision"),
        ("stream", cuts_the_stream, "no-finish"),
        ("tool_pre_execute", swallows, "returns-cancelled"),
        ("tool_execute", replaces, "replaces-cancelled"),
        ("tool_execute", says_goodbye, "slow-to-stop"),
        ("tool_post_execute", shields, "shields-forever"),
        ("tool_execute", audits_late, "effect-after-cancel"),
        ("tool_pre_execute", asks_for_long, "slow"),
        ("assemble", blocks, "blocks"),
        ("request", starts_a_task, "leaves-task"),
        ("tool_pre_execute", not_async, "wrong-decision"),
        ("request_error", raises, "fails"),
        ("status", async_observer, "wrong-decision"),
        ("turn_stopping", plain_serial, "wrong-decision"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_defect_is_named(hook, listener, kind):
    report = check_hook(hook, listener, effects=effects)
    assert kind in report.kinds, report
    assert listener.__name__ in report.subject


# --- right ------------------------------------------------------------------------------------


async def looks(value, proceed):
    return await proceed()


async def adds_a_message(value, proceed):
    decision = await proceed()
    return evolve(decision, messages=decision.messages) if isinstance(decision, Enter) else decision


async def rejects(value, proceed):
    return Reject()


async def denies(value, proceed):
    return Deny("not here")


async def lowers_the_limit(value, proceed):
    config = await proceed()
    assert isinstance(config, CallConfig)
    return evolve(config, max_tokens=100)


async def changes_before(value, proceed):
    return await proceed(evolve(value, config=evolve(value.config, max_tokens=100)))


async def retries(value, proceed):
    await trio.sleep(0.5)
    return Retry()


async def redacts(value, proceed):
    outcome = await proceed()
    return evolve(outcome, content=outcome.content[:0])


async def blocks_the_result(value, proceed):
    return value.blocked("this may not leave the house")


async def answers_from_a_cache(value, proceed):
    outcome = await proceed()
    return outcome


async def audits_under_a_bound(value, proceed):
    decision = await proceed()
    with trio.move_on_after(0.5, shield=True):
        await trio.sleep(0.1)
    return decision


async def waits_a_little(value):
    await trio.sleep(0.1)


def sees(value):
    repr(value)


CORRECT = [
    *((hook, looks) for hook in WATERFALLS),
    *((hook, waits_a_little) for hook in SERIALS),
    *((hook, sees) for hook in HOOKS if hook not in (*WATERFALLS, *SERIALS)),
    ("pre_step", adds_a_message),
    ("pre_step", rejects),
    ("tool_pre_execute", denies),
    ("request", lowers_the_limit),
    ("request", changes_before),
    ("request_error", retries),
    ("tool_post_execute", redacts),
    ("tool_post_execute", blocks_the_result),
    ("tool_execute", answers_from_a_cache),
    ("tool_execute", audits_under_a_bound),
]


@pytest.mark.parametrize(
    ("hook", "listener"), CORRECT, ids=lambda value: getattr(value, "__name__", value)
)
def test_correct_listener_gets_no_verdict(hook, listener):
    report = check_hook(hook, listener)
    assert report.verdicts == (), report
    if hook in WATERFALLS and listener not in (rejects, denies, blocks_the_result):
        assert report.points > 0


def test_every_hook_point_can_be_checked():
    """The names and kinds are those of the engine's own table."""
    from terzetto.agent import _hooks

    kinds = {name: kind.__name__ for name, kind in _hooks._KINDS.items()}
    assert set(HOOKS) == set(kinds)
    assert {name for name, kind in kinds.items() if kind == "Waterfall"} == set(WATERFALLS)
    assert {name for name, kind in kinds.items() if kind == "Serial"} == set(SERIALS)


def test_place_is_where_the_listener_begins():
    report = check_hook("request", another_route)
    line = another_route.__code__.co_firstlineno
    [verdict] = report.verdicts
    assert verdict.place == f"tests/testing/test_check_hook.py:{line}"
    assert "ROUTE_CHANGED" in verdict.text


def test_veto_may_fail():
    async def vetoes(agent):
        await trio.lowlevel.checkpoint()
        raise PermissionError("no more agents")

    assert check_hook("agent_created", vetoes).kinds == ("fails",)
    assert check_hook("agent_created", vetoes, may_fail=True).verdicts == ()


def test_own_values_are_shown():
    seen = []

    def note(value):
        seen.append(value)

    check_hook("status", note, values=["one", "two"])
    assert seen == ["one", "one", "two", "two"]


@pytest.mark.parametrize(
    ("hook", "listener", "options", "said"),
    [
        ("pre_stop", looks, {}, "there is no hook 'pre_stop'; there are pre_step"),
        ("pre_step", "looks", {}, "expected a function"),
        ("pre_step", looks, {"ignore": ["late"]}, "there is no verdict 'late'"),
    ],
)
def test_bad_input_is_refused(hook, listener, options, said):
    with pytest.raises(InvalidValue, match=said):
        check_hook(hook, listener, **options)
