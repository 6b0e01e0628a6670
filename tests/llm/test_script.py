"""Scripts as values: what the constructors build, which answer a request gets, the seed."""

import json

import pytest
from hypothesis import given, strategies as st

from terzetto.llm._answer import (
    Answer,
    Comment,
    Cut,
    Delay,
    End,
    Gate,
    Hang,
    Raw,
    Refuse,
    Truncate,
    Wire,
)
from terzetto.llm._script import (
    AUTO_ID,
    Script,
    answer,
    call,
    finish_error,
    out_of_quota,
    overflow,
    refuse,
    say,
    think,
)
from terzetto.vocabulary import (
    BlockEnd,
    BlockStart,
    CallConfig,
    CallId,
    ErrorFinish,
    Finish,
    InvalidValue,
    MaxTokens,
    ProviderError,
    ReasoningBlock,
    Request,
    SessionId,
    Stop,
    StreamChunk,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolCalls,
    Usage,
    UsageChunk,
    UserMessage,
    assemble,
)

USAGE = Usage(input_tokens=7, output_tokens=1)


def asking(text: str = "go") -> Request:
    config = CallConfig(provider="scripted", model="m")
    return Request(session_id=SessionId("s"), config=config, messages=(UserMessage(text),))


def chunks_of(given: Answer) -> list[StreamChunk]:
    return [action for action in given.actions if isinstance(action, StreamChunk)]


def finish_of(given: Answer) -> Finish:
    finish = given.actions[-1]
    assert isinstance(finish, Finish)
    return finish


def test_text_comes_word_by_word_between_its_start_and_its_end() -> None:
    assert answer("Two words").actions == (
        BlockStart(0, "text"),
        TextDelta(0, "Two "),
        TextDelta(0, "words"),
        BlockEnd(0, TextBlock("Two words")),
        Finish(Stop()),
    )


@given(st.text())
def test_words_are_the_whole_text(text: str) -> None:
    assert "".join(say(text).pieces) == text


@given(st.text(), st.integers(1, 9))
def test_a_number_of_pieces_is_the_whole_text_in_at_most_so_many(text: str, count: int) -> None:
    pieces = say(text, pieces=count).pieces
    assert "".join(pieces) == text
    assert len(pieces) == min(count, len(text))


def test_given_pieces_are_kept_and_must_be_the_text() -> None:
    assert say("abc", pieces=["a", "bc"]).pieces == ("a", "bc")
    with pytest.raises(InvalidValue, match="expected pieces of 'abc'"):
        say("abc", pieces=["a", "b"])


def test_parts_become_one_answer_with_rising_indexes() -> None:
    made = answer(think("Hm."), "Look.", call("read", path="x", id="c1"), call("now", id="c2"))
    assembled = assemble(chunks_of(made)).assembled()
    assert assembled.content == (
        ReasoningBlock("Hm."),
        TextBlock("Look."),
        ToolCallBlock(CallId("c1"), "read", '{"path": "x"}'),
        ToolCallBlock(CallId("c2"), "now", "{}"),
    )
    assert finish_of(made) == Finish(ToolCalls())


def test_a_raw_chunk_moves_the_index_of_what_follows() -> None:
    made = answer(TextDelta(4, "a"), "b")
    assert BlockStart(5, "text") in made.actions


def test_only_the_first_delta_of_a_call_names_it() -> None:
    deltas = [chunk for chunk in answer(call("t", a=1)).actions if isinstance(chunk, ToolCallDelta)]
    assert [delta.name for delta in deltas] == ["t", None]


def test_arguments_may_have_reserved_names_or_be_no_json_at_all() -> None:
    assert call("t", {"id": 3}, x=1).block == ToolCallBlock(AUTO_ID, "t", '{"id": 3, "x": 1}')
    assert call("t", '{"x":').block == ToolCallBlock(AUTO_ID, "t", '{"x":')
    with pytest.raises(InvalidValue, match="both"):
        call("t", "{}", x=1)


def test_empty_raw_arguments_still_announce_the_call() -> None:
    assert ToolCallDelta(0, AUTO_ID, "", "t") in answer(call("t", "")).actions


def test_the_finish_can_be_chosen_and_usage_comes_before_it() -> None:
    made = answer(call("t"), finish=MaxTokens(), usage=USAGE)
    assert made.actions[-2:] == (UsageChunk(USAGE), Finish(MaxTokens()))


def test_a_failed_finish_is_the_finish() -> None:
    made = answer("Part", finish_error("SERVER", "overloaded", status=503), usage=USAGE)
    reason = finish_of(made).reason
    assert isinstance(reason, ErrorFinish)
    assert (reason.failure.code, reason.failure.status) == ("SERVER", 503)
    assert made.actions[-2] == UsageChunk(USAGE)
    with pytest.raises(InvalidValue, match="expected one finish"):
        answer(finish_error(), finish=Stop())


def test_an_ending_that_breaks_off_leaves_the_finish_out() -> None:
    made = answer("par", Hang())
    assert made.ending == Hang()
    assert not any(isinstance(action, Finish) for action in made.actions)
    assert finish_of(answer("whole", Hang(), finish=Stop())) == Finish(Stop())
    assert finish_of(answer("whole", End())) == Finish(Stop())
    with pytest.raises(InvalidValue, match="nothing follows"):
        answer(Hang(), "more")


def test_an_answer_refuses_what_is_no_action() -> None:
    with pytest.raises(InvalidValue, match="expected a chunk or a pause"):
        Answer((say("x"),))  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_a_delay_is_finite(seconds: float) -> None:
    with pytest.raises(InvalidValue, match="Delay"):
        Delay(seconds)


def test_wire_options_are_checked() -> None:
    with pytest.raises(InvalidValue, match="bytes_per_write"):
        Wire(bytes_per_write=0)
    with pytest.raises(InvalidValue, match="stop_after_bytes"):
        Wire(stop_after_bytes=-1)


def test_stop_keeps_so_many_chunks_and_the_pauses_among_them() -> None:
    whole = answer(Gate("g"), say("a b c", pieces=3))
    stopped = whole.stop(Cut(), chunks=2)
    assert stopped.actions == (Gate("g"), BlockStart(0, "text"), TextDelta(0, "a"))
    assert stopped.ending == Cut()
    assert whole.stop(Hang(), chunks=0).actions == ()
    assert whole.stop(Hang(), chunks=99).actions == whole.actions
    assert whole.stop(Truncate(), body_bytes=5).wire.stop_after_bytes == 5
    with pytest.raises(InvalidValue, match="End"):
        whole.stop(End())


def test_refusals_know_their_code_and_their_wait() -> None:
    refusals = [refuse(429, retry_after=1.5), refuse(503), refuse(422), refuse(401)]
    assert [refusal.failure.code for refusal in refusals] == [
        "RATE_LIMIT",
        "SERVER",
        "INVALID_REQUEST",
        "AUTH",
    ]
    assert refusals[0].failure.provider_retry_after_ms == 1500
    assert refusals[0].headers == (("retry-after", "1.5"),)
    assert refuse(429, retry_after=1_000_000).headers == (("retry-after", "1000000"),)
    assert refuse(429, retry_after=-1).failure.provider_retry_after_ms is None
    odd = refuse(429, retry_after="abc")
    assert (odd.headers, odd.failure.provider_retry_after_ms) == ((("retry-after", "abc"),), None)
    assert overflow().failure.code == "CONTEXT_OVERFLOW"
    assert out_of_quota().provider_code == "insufficient_quota"
    with pytest.raises(InvalidValue, match="status"):
        refuse(200)


# Scripts.


def test_entries_are_consumed_in_order_and_then_missed() -> None:
    script = Script(["one", answer("two"), refuse(500)])
    assert script.reply(1, asking()) == answer("one")
    assert script.reply(2, asking()) == answer("two")
    assert isinstance(script.reply(3, asking()).ending, Refuse)
    with pytest.raises(ProviderError, match="request 4 has no answer: the script has 3") as missed:
        script.reply(4, asking())
    assert missed.value.code == "SCRIPT_EXHAUSTED"


def test_functions_see_the_request_for_one_entry_or_for_all_the_rest() -> None:
    def echo(request: Request) -> str:
        last = request.messages[-1]
        assert isinstance(last, UserMessage)
        return f"you said {last.text}"

    script = Script([echo, "fixed"], then=echo)
    assert script.reply(1, asking("a")) == answer("you said a")
    assert script.reply(2, asking("b")) == answer("fixed")
    assert script.reply(9, asking("c")) == answer("you said c")
    assert Script.of(echo).reply(1, asking("d")) == answer("you said d")


@pytest.mark.parametrize(
    ("source", "count"),
    [("hello", 1), (say("x"), 1), (answer("x"), 1), (Hang(), 1), (["a", "b"], 2), ((), 0)],
)
def test_a_script_is_made_of_what_is_at_hand(source: object, count: int) -> None:
    assert len(Script.of(source).entries) == count  # type: ignore[arg-type]


def test_automatic_call_ids_are_unique_in_the_script_and_stable() -> None:
    script = Script([answer("Hm.", call("a"), call("b")), answer(call("a"))])
    ids = []
    for number in (1, 2):
        content = assemble(chunks_of(script.reply(number, asking()))).assembled().content
        ids.append([block.id for block in content if isinstance(block, ToolCallBlock)])
    assert ids == [["call_1_1", "call_1_2"], ["call_2_1"]]


def test_given_call_ids_stay() -> None:
    reply = Script([answer(call("a", id="c"), call("b"))]).reply(1, asking())
    ids = {action.id for action in reply.actions if isinstance(action, ToolCallDelta)}
    assert ids == {"c", "call_1_1"}


texts = st.text(max_size=60)


@given(texts, texts, st.integers())
def test_a_seed_changes_the_pieces_and_nothing_else(said: str, thought: str, seed: int) -> None:
    entry = answer(think(thought), Comment(), say(said), call("t", text=said), usage=USAGE)
    plain = Script([entry]).reply(1, asking())
    jittered = Script([entry], seed=seed).reply(1, asking())
    assert jittered == Script([entry], seed=seed).reply(1, asking())
    content = [
        assemble([chunk for chunk in chunks_of(reply) if not isinstance(chunk, BlockEnd)])
        for reply in (plain, jittered)
    ]
    assert content[0].assembled() == content[1].assembled()
    deltas = [action for action in jittered.actions if isinstance(action, TextDelta)]
    assert all(len(delta.text) <= 12 for delta in deltas)


def test_a_seed_treats_each_request_differently_and_every_run_alike() -> None:
    script = Script(["word " * 40] * 2, seed=3)
    replies = [script.reply(number, asking()) for number in (1, 2, 1)]
    assert replies[0] != replies[1]
    assert replies[0] == replies[2]


def test_a_seed_varies_delays_by_up_to_half() -> None:
    script = Script(then=lambda request: answer(Delay(2)), seed=0)
    delays = {
        action.seconds
        for number in range(1, 20)
        for action in script.reply(number, asking()).actions
        if isinstance(action, Delay)
    }
    assert len(delays) == 19
    assert all(1 <= delay <= 3 for delay in delays)


def test_a_script_without_a_seed_is_played_as_written() -> None:
    entry = answer(Gate("g"), say("a long enough text to be cut"), Raw(b"x"), Delay(1))
    assert Script([entry]).reply(1, asking()) is entry


def test_json_arguments_keep_their_characters() -> None:
    block = call("t", city="杭州").block
    assert isinstance(block, ToolCallBlock)
    assert "杭州" in block.arguments
    assert json.loads(block.arguments) == {"city": "杭州"}
