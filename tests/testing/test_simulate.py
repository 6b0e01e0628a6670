"""Simulations: whole programs from seeds, the same in every process, and nothing goes wrong.

C173-C177 and C179 are what every simulation checks; C126-C130 are what its cancels do.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import trio
from tests.commands import environment

from terzetto import Event, Tool, UsageError, tool
from terzetto.llm.scripted import call, say
from terzetto.testing import Simulated, Simulation, _simulate_plan as plans, simulate
from terzetto.testing._simulate_command import main
from terzetto.testing._simulate_draw import drawn
from terzetto.vocabulary import InvalidValue, SessionHeader

SEEDS = 20


def test_nothing_goes_wrong_and_every_run_is_repeatable() -> None:
    """No violation in any seed, and the same bytes when it is played again."""
    digests = set()
    for seed in range(SEEDS):
        done = simulate(seed)
        assert done.problems == (), seed
        digests.add(done.digest)
        if seed % 5 == 0:
            again = simulate(seed, traced=True)
            assert (again.digest, again.turns) == (done.digest, done.turns), seed
            assert again.notes
    assert len(digests) == SEEDS


def test_another_process_with_other_hashes_records_the_same_bytes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither set order nor ids nor what ran before are in a log."""
    here = {seed: simulate(seed).digest for seed in (19, 3, 14, 36)}
    for hash_seed, first, count in (("1", 14, 1), ("4242", 36, 1)):
        command = [sys.executable, "-W", "error", "-m", "terzetto.testing.simulate", "--hashes"]
        found = subprocess.run(
            [*command, "--from", str(first), "--seeds", str(count)],
            env=environment(PYTHONHASHSEED=hash_seed),
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        lines = dict(line.split() for line in found.stdout.splitlines()[:count])
        assert lines == {str(seed): here[seed] for seed in range(first, first + count)}


def test_chance_reaches_everything_that_a_script_can_say() -> None:
    """Every act, deed, listener, point and trouble is drawn, and none is drawn always."""
    met: Counter[str] = Counter()
    seeds = 250
    for seed in range(seeds):
        simulation = drawn(seed, own=1)
        said = set[str]()
        for answers in simulation.answers.values():
            for part in (part for each in answers for part in each.parts):
                if isinstance(part, plans.Call):
                    said.add(f"calls {part.tool}" if part.given is None else "calls own")
                    said |= {f"does {deed.partition(':')[0]}" for deed in part.does}
                else:
                    said.add(f"streams {part.partition(':')[0]}")
        for life in simulation.lives:
            said |= {f"act {act.do}" for act in life.acts}
            said |= {f"at {each.point}" for each in life.listeners}
            said |= {f"listens {each.does}" for each in life.listeners}
            said |= {f"store {each.operation}" for each in life.troubles}
            said |= {f"store {each.does}" for each in life.troubles}
        said |= {f"level {simulation.durability}", f"lives {len(simulation.lives)}"}
        met.update(said)
    wanted = {f"act {name}" for name in plans.ACTS}
    wanted |= {f"does {name}" for name in plans.DOES}
    wanted |= {f"streams {name}" for name in plans.STREAMED}
    wanted |= {f"calls {name}" for name in (*plans.TOOLS, "own")}
    wanted |= {f"at {name}" for name in (*plans.WATERFALLS, *plans.SERIALS, *plans.NOTICES)}
    wanted |= {f"listens {name}" for name in plans.LISTENS}
    wanted |= {f"store {name}" for name in (*plans.STORE, "fail", "hang", "slow")}
    wanted |= {"level step", "level lazy", "level each", "lives 1", "lives 3"}
    assert wanted - set(met) == set()
    for name in ("act power cut", "act ctrl-c", "act fork", "store fail"):
        assert 5 < met[name] < seeds


# --- scripts --------------------------------------------------------------------------


def test_a_script_is_the_same_after_a_trip_through_json() -> None:
    for seed in range(25):
        simulation = drawn(seed, own=seed % 2)
        text = simulation.to_json()
        assert Simulation.from_json(text) == simulation
        assert max(map(len, text.splitlines())) < 300


CUT_IN_A_BODY = """
{"seed": 1, "latency": 0.05,
 "answers": {"ada": [{"parts": ["say:I will.", {"tool": "note", "does": ["hang"]},
                                {"tool": "alone"}]}]},
 "lives": [{"acts": [{"do": "open", "who": "ada"},
                     {"at": 0.1, "do": "followup", "who": "ada"},
                     {"at": 2, "do": "power cut"}]}]}
"""


def test_a_power_cut_in_a_body_is_told_as_it_was() -> None:
    """What had begun is of unknown outcome, what had not is asked for again (C135, C136)."""
    done = simulate(Simulation.from_json(CUT_IN_A_BODY), traced=True)
    assert done.problems == ()
    told = [what for _, _, _, what in done.notes]
    assert "cut; 0 of 100 of 0 unflushed events kept" in told
    assert any("TOOL_OUTCOME_UNKNOWN" in str(event.data) for event in done.sessions["ada"])
    assert any("TOOL_NOT_STARTED" in str(event.data) for event in done.sessions["ada"])
    began = [what for what in told if what.startswith("the body of")]
    assert began == ["the body of call-1 begins: effect-1"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "a script: expected JSON"),
        ("[]", "a script: expected a JSON object, got"),
        ('{"lifes": []}', "a script: has no 'lifes'; expected one of seed, durability"),
        ('{"cap": 0}', "a script: .*'cap' must be >= 1"),
        ('{"cap": "many"}', "a script: .*'cap' must be <class 'int'>"),
        ('{"durability": "never"}', "a script: 'durability' must be in"),
        ('{"lives": [{"acts": [{"do": "dance"}]}]}', "an act: 'do' must be in .*'power cut'"),
        ('{"lives": [{"acts": [{}]}]}', "an act: .*missing 1 required .*argument: 'do'"),
        ('{"lives": [7]}', "a life: expected a JSON object, got 7"),
        ('{"lives": 7}', "a script: .*not iterable"),
        ('{"answers": {"ada": [{"parts": ["sing:"]}]}}', "an answer: a part of an answer is one"),
        (
            '{"answers": {"ada": [{"parts": [{"does": ["fly"]}]}]}}',
            "a part of an answer: a body does one of sleep, .*got 'fly'",
        ),
        ('{"answers": {"ada": [{"parts": [{"given": 0}]}]}}', "wants call 0 of yours"),
        ('{"answers": {"ada": [{"parts": [{"given": -1}]}]}}', "a part of an answer: .*'given'"),
        ('{"answers": {"ada": [{"parts": ["delay:soon"]}]}}', "expected seconds, .*'soon'"),
        ('{"latency": NaN}', "a script: 'latency' must be >= 0: nan"),
        ('{"lives": [{"acts": [{"at": Infinity, "do": "cap"}]}]}', "'at' must be <= 1000: inf"),
        ('{"lives": [{"acts": [{"steps": 100000, "do": "cap"}]}]}', "'steps' must be <= 1000"),
        ('{"answers": []}', "a script: answers: expected the answers to each agent by its name"),
    ],
)
def test_a_script_that_cannot_be_is_refused(text: str, says: str) -> None:
    """What was expected, what came: before anything is played."""
    with pytest.raises(InvalidValue, match=says):
        simulate(Simulation.from_json(text))


@pytest.mark.parametrize("given", ["3", True, None, 1.5])
def test_what_is_no_simulation_is_refused(given: Any) -> None:
    with pytest.raises(InvalidValue, match="expected a seed or a Simulation"):
        simulate(given)


def test_calls_are_calls() -> None:
    with pytest.raises(InvalidValue, match=r"calls: expected what scripted.call\(...\) gives"):
        simulate(1, calls=[say("hello")])


def test_inside_a_trio_run_it_is_refused() -> None:
    """It would run inside somebody's run; said at once, and nothing is played."""

    async def inside() -> None:
        simulate(1)

    with pytest.raises(UsageError, match="cannot be called inside a Trio run"):
        trio.run(inside)


def test_tools_are_tools_with_names_of_their_own() -> None:
    @tool
    async def note() -> str:
        """Note."""
        return ""

    with pytest.raises(InvalidValue, match=r"'note' is one of the simulation's own .*another name"):
        simulate(1, tools=[note])
    wrong: Any = [lambda: None]
    with pytest.raises(InvalidValue, match="tools: expected Tools, got"):
        simulate(1, tools=wrong)


CTRL_C = """
{"lives": [{"acts": [{"do": "open", "who": "ada"}, {"at": 1, "do": "followup", "who": "ada"},
                     {"at": 1, "do": "ctrl-c"}]}]}
"""


def test_in_another_thread_no_signal_is_raised() -> None:
    """Signals belong to the main thread: there it is the host's cancel instead."""
    script, done = Simulation.from_json(CTRL_C), list[Simulated]()
    thread = threading.Thread(target=lambda: done.append(simulate(script)))
    thread.start()
    thread.join()
    [elsewhere] = done
    assert (elsewhere.problems, simulate(script).problems) == ((), ())


def test_somebodys_ctrl_c_ends_it() -> None:
    """A KeyboardInterrupt that the script does not ask for is no finding; it is raised."""

    @tool(parallel=True)
    async def pressed() -> str:
        """Somebody presses Ctrl-C."""
        raise KeyboardInterrupt

    script = """{"answers": {"ada": [{"parts": [{"given": 0}]}]}, "lives": [
        {"acts": [{"do": "open", "who": "ada"}, {"at": 1, "do": "followup", "who": "ada"}]}]}"""
    with pytest.raises(KeyboardInterrupt):
        simulate(Simulation.from_json(script), tools=[pressed], calls=[call("pressed")])


# --- tools of one's own ----------------------------------------------------------------


def _taps(careful: bool) -> tuple[Tool, list[str]]:
    running: list[str] = []

    @tool(parallel=True)
    async def run_water(tap: str) -> str:
        """Run water."""
        running.append(tap)
        if not careful:
            await trio.sleep(0.2)
            running.remove(tap)
            return "ran"
        try:
            await trio.sleep(0.2)
        finally:
            running.remove(tap)
        return "ran"

    return run_water, running


@pytest.mark.parametrize("careful", [True, False])
def test_a_tool_of_ones_own_is_played_with(careful: bool) -> None:
    """A tool that does not clean up is found by what it leaves; one that does is not."""
    found = set[str]()
    for seed in range(12):
        run_water, running = _taps(careful)
        done = simulate(
            seed,
            tools=[run_water],
            calls=[call("run_water", tap="hot"), call("run_water", tap="cold")],
            check=lambda: [f"{tap} water runs" for tap in running],  # noqa: B023
        )
        found.update(done.problems)
    assert found <= {"hot water runs", "cold water runs"}
    assert bool(found) is not careful


def test_a_check_sees_every_session_whole() -> None:
    """With its header, from the first event on, once all is over."""
    seen: dict[str, int] = {}

    def check(header: SessionHeader, events: Sequence[Event]) -> Iterable[str]:
        seen[header.id] = len(events)
        assert [event.seq for event in events] == list(range(len(events)))
        return ["is too long"] if header.id == "ada" else []

    done = simulate(1, session_checks=[check])
    assert done.problems == ("is too long (ada)",)
    assert seen == {name: len(events) for name, events in done.sessions.items()}


# --- the command ----------------------------------------------------------------------


def test_the_command_counts_and_ends_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--from", "2"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("3 seeds, ")
    assert line.endswith(" turns a minute, 0 violations")


def test_two_workers_say_what_one_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("terzetto.testing._simulate_command.EVERY", 2)
    said = []
    for jobs in ("1", "2"):
        assert main(["--seeds", "4", "--hashes", "--jobs", jobs]) == 0
        said.append(capsys.readouterr().out.splitlines()[:-1])
    assert said[0] == said[1]
    assert [line.split()[0] for line in said[0]] == ["0", "1", "2", "3"]


def test_a_replay_tells_what_happened_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """The script, then virtual times, who and what, with the cuts; then the digest."""
    seed = next(s for s in range(100) if any(a.do == "power cut" for a in drawn(s).lives[0].acts))
    assert main(["--replay", str(seed)]) == 0
    out = capsys.readouterr().out
    script, _, told = out.partition("\nlife 1\n")
    assert Simulation.from_json(script) == drawn(seed)
    for piece in ("ada        <- open", "turn/start ", "power      cut; ", "life 2\n", "turn/end"):
        assert piece in told, piece
    assert f"digest {simulate(seed).digest}" in told
    times = [float(line[:8]) for line in told.partition("life 2")[0].splitlines() if line[:8]]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--seeds", "0"], "expected 1 or more"),
        (["--from", "-1"], "expected 0 or more"),
        (["--replay", "x"], "invalid"),
        (["--replay", "1", "--script", "-"], "not allowed with"),
    ],
)
def test_a_command_line_that_cannot_be_is_refused(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_a_script_file_is_played_and_a_bad_one_refused(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.json"
    script.write_text(CUT_IN_A_BODY)
    assert main(["--script", str(script)]) == 0
    assert "2.00 s  power      cut" in capsys.readouterr().out
    script.write_text('{"lives": [{"acts": [{"do": "dance"}]}]}')
    assert main(["--script", str(script)]) == 2
    assert "simulate: an act: 'do' must be in" in capsys.readouterr().err
    assert main(["--script", str(tmp_path / "absent")]) == 2
    assert "No such file" in capsys.readouterr().err
