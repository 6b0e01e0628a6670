"""The pytest plugin: explored tests, seeds, the scripted engine; how it keeps out of the way."""

import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
PLUGIN = ("-p", "terzetto_pytest", "-p", "no:cacheprovider")
TRIO = (*PLUGIN, "-p", "pytest_trio.plugin")

EXPLORED = """
    import pytest, trio
    from terzetto import tool
    from terzetto.llm.scripted import call

    runs = []

    @tool
    async def wait(seconds: float) -> str:
        '''Wait.'''
        await trio.sleep(seconds)
        return "waited"

    @pytest.mark.terzetto_explore([call("wait", seconds=5), "Done."], sources=["user"], stride=9)
    async def test_waits(terzetto_stage, tmp_path):
        runs.append(tmp_path)
        async with terzetto_stage.open_engine([wait]) as engine:
            async with terzetto_stage.open_agent(engine) as agent:
                terzetto_stage.send("followup", "go")
                await agent.wait_idle()

    def test_it_ran_often():
        assert len(runs) > 4
        assert len(set(runs)) == 1
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Only the plugins that a test names: ours may be installed, too."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    paths = [SOURCE, os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


@pytest.mark.parametrize("plugins", [PLUGIN, TRIO], ids=["without pytest-trio", "with"])
def test_explored_test_is_run_at_every_point(pytester, plugins):
    pytester.makepyfile(EXPLORED)
    pytester.runpytest_inprocess(*plugins, "--strict-markers").assert_outcomes(passed=2)


def test_explored_test_works_in_trio_mode_and_in_a_class(pytester):
    pytester.makeini("[pytest]\ntrio_mode = true")
    pytester.makepyfile(
        """
        import pytest, trio

        class TestIt:
            @pytest.mark.terzetto_explore(sources=["host cancel"], stride=9)
            async def test_it(self, terzetto_stage):
                assert isinstance(self, TestIt)
                async with terzetto_stage.open_engine() as engine:
                    async with terzetto_stage.open_agent(engine) as agent:
                        terzetto_stage.send("followup", "go")
                        await agent.wait_idle()

        async def test_another():
            await trio.sleep(0)
        """
    )
    pytester.runpytest_inprocess(*TRIO).assert_outcomes(passed=2)


BROKEN = """
    import pytest

    @pytest.mark.terzetto_explore(["Hello."], sources=["user"], stride=3)
    async def test_promises(terzetto_stage):
        state = {"done": False}
        terzetto_stage.expect(lambda: state["done"] != "half", "it was left half done")
        async with terzetto_stage.open_engine() as engine:
            async with terzetto_stage.open_agent(engine) as agent:
                terzetto_stage.send("followup", "go")
                state["done"] = "half"
                await agent.wait_idle()
                if agent.session.history()[-1].text == "Hello.":
                    state["done"] = True
"""


def test_violations_are_told_with_what_does_it_again(pytester):
    pytester.makepyfile(BROKEN)
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "it was left half done" in text
    assert " violations in " in text
    assert "the first one alone, with its log: --terzetto-point 'user:" in text
    assert "pytest_pyfunc_call" not in text  # the report is about the test, not about the plugin
    at = text.partition("--terzetto-point '")[2].partition("'")[0]
    again = pytester.runpytest_inprocess(*PLUGIN, "--terzetto-point", at)
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["*agent/inbox/spliced*", "*----*", "*- it was left half done*"])


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("sources=['nobody']", "there is no source 'nobody'; there are 'user'"),
        ("strides=3", "got 'strides'"),
        ("[], []", "got 2 values"),
    ],
)
def test_bad_marker_says_what_was_expected(pytester, marker, said):
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.terzetto_explore({marker})
        async def test_it(terzetto_stage):
            pass
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN)
    assert said in result.stdout.str()
    assert result.ret != 0


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("async def test_it():\n    pass", "expected a parameter terzetto_stage"),
        ("def test_it(terzetto_stage):\n    pass", "expected an async def test"),
        (
            "@pytest.fixture\nasync def server():\n    return 1\n\n"
            "@pytest.mark.terzetto_explore()\n@pytest.mark.trio\n"
            "async def test_it(terzetto_stage, server):\n    pass",
            "the async fixture 'server' only once",
        ),
    ],
)
def test_test_that_cannot_be_explored_says_why(pytester, test, said):
    mark = "" if "mark" in test else "@pytest.mark.terzetto_explore()\n"
    pytester.makepyfile(f"import pytest\n\n{mark}{test}")
    result = pytester.runpytest_inprocess(*TRIO)
    assert said in result.stdout.str()
    assert result.ret != 0


SEEDED = """
    import pytest, trio

    orders = {}

    def run(seed):
        order = []

        async def one(number):
            await trio.lowlevel.checkpoint()
            order.append(number)

        async def main():
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(one, number)

        trio.run(main)
        return tuple(order)

    def test_order(terzetto_seed):
        orders.setdefault(terzetto_seed, []).append(run(terzetto_seed))

    def test_order_again(terzetto_seed):
        orders[terzetto_seed].append(run(terzetto_seed))
        one, other = orders[terzetto_seed]
        assert one == other

    @pytest.mark.terzetto_seeds([7, 8])
    def test_of_my_own(terzetto_seed):
        assert terzetto_seed in (7, 8)

    def test_without():
        assert len(set(map(tuple, orders.values()))) == len(orders)
"""


@pytest.mark.parametrize(("options", "passed"), [((), 5), (("--terzetto-seeds", "5"), 13)])
def test_seeds_pin_the_order_of_tasks(pytester, options, passed):
    pytester.makepyfile(SEEDED)
    result = pytester.runpytest_inprocess(*PLUGIN, *options)
    result.assert_outcomes(passed=passed)


def test_one_seed_alone_and_in_the_name(pytester):
    pytester.makepyfile(SEEDED)
    result = pytester.runpytest_inprocess(*PLUGIN, "-v", "--terzetto-seed", "8", "-k", "own")
    result.assert_outcomes(passed=1, deselected=3)
    assert "test_of_my_own[seed8]" in result.stdout.str()


@pytest.mark.parametrize("bad", ["0", "[]", "'all'", ""])
def test_bad_seeds_are_refused(pytester, bad):
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.terzetto_seeds({bad})
        def test_it(terzetto_seed):
            pass
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN)
    assert "expected a number above 0 or a list of seeds" in result.stdout.str()
    assert result.ret != 0


def test_seeds_work_with_pytest_trio(pytester):
    pytester.makepyfile(
        """
        import pytest, trio

        @pytest.mark.trio
        async def test_it(terzetto_seed, nursery):
            await trio.lowlevel.checkpoint()
            assert terzetto_seed in range(3)
        """
    )
    pytester.runpytest_inprocess(*TRIO, "--terzetto-seeds", "3").assert_outcomes(passed=3)


def test_engine_is_scripted_and_its_log_is_the_same_each_time(pytester):
    pytester.makepyfile(
        """
        import pytest, trio
        from terzetto import tool
        from terzetto.llm.scripted import call

        @tool
        async def shout(text: str) -> str:
            '''Shout.'''
            return text.upper()

        logs = []

        async def once(terzetto_engine):
            script = [call("shout", text="hello"), "HELLO it is."]
            async with terzetto_engine(script, tools=[shout], system="Be brief.") as play:
                turn = await play.agent.ask("Shout hello.")
                assert turn.text == "HELLO it is."
                assert len(play.model.requests) == 2
                logs.append([event for event in play.agent.session.events])

        @pytest.mark.trio
        async def test_with_pytest_trio(terzetto_engine):
            await once(terzetto_engine)

        def test_without(terzetto_engine):
            trio.run(once, terzetto_engine)
            assert logs[0] == logs[1]
        """
    )
    pytester.runpytest_inprocess(*TRIO).assert_outcomes(passed=2)


def test_unused_plugin_imports_neither_trio_nor_terzetto(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_it():
            heavy = {"trio", "httpx", "attrs", "terzetto", "terzetto.testing"}
            assert not heavy & sys.modules.keys()
            assert "terzetto_pytest" in sys.modules
        """
    )
    pytester.runpytest_subprocess(*PLUGIN, "-W", "error").assert_outcomes(passed=1)


def test_unused_plugin_changes_nothing(pytester):
    """A test that fails does so in the same words, with the plugin and without it."""
    pytester.makepyfile("def test_it(capsys):\n    print('hello')\n    assert 1 == 2")
    with_it = pytester.runpytest_inprocess(*PLUGIN)
    without = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    said = [line for line in with_it.outlines if "terzetto" not in line]

    def told(lines):
        return [line for line in lines if line.startswith(("E ", ">", "FAILED", "def "))]

    assert told(said) == told(without.outlines)
    assert told(said)


def test_a_seed_that_is_asked_for_too_late_says_what_to_do(pytester):
    pytester.makepyfile(
        """
        def test_late(request):
            request.getfixturevalue("terzetto_seed")
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*test_late: terzetto_seed: expected it among the test's parameters*"]
    )
    assert "AttributeError" not in result.stdout.str()


def test_a_stage_without_exploring_says_what_to_do(pytester):
    pytester.makepyfile("def test_it(terzetto_stage): terzetto_stage.open_engine()")
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_it: terzetto_stage: expected a test with the marker*"])


@pytest.fixture
def installed(pytester, monkeypatch):
    """The package as a wheel leaves it: with a record of its files and an entry point."""
    made = pytester.mkdir("site") / "terzetto-0.0.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: terzetto\nVersion: 0.0.0\n")
    (made / "RECORD").write_text("terzetto/__init__.py,,\nterzetto_pytest/__init__.py,,\n")
    points = tomllib.loads((Path(SOURCE).parent / "pyproject.toml").read_text())["project"]
    ((name, target),) = points["entry-points"]["pytest11"].items()
    (made / "entry_points.txt").write_text(f"[pytest11]\n{name} = {target}\n")
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([SOURCE, str(made.parent)]))


def test_an_installed_plugin_leaves_the_asserts_of_the_engine_as_they_are(pytester, installed):
    """Also where it is named a second time: it is the same one."""
    pytester.makepyfile(
        """
        import sys
        from _pytest.assertion.rewrite import AssertionRewritingHook

        def test_it(terzetto_engine):
            import terzetto.agent
            by_pytest = {
                name for name, module in sys.modules.items()
                if isinstance(getattr(module, "__loader__", None), AssertionRewritingHook)
            }
            assert "terzetto_pytest" in by_pytest
            assert not [name for name in by_pytest if name.split(".")[0] == "terzetto"]
        """
    )
    result = pytester.runpytest_subprocess("-p", "terzetto_pytest", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


def test_an_engine_that_is_imported_before_pytest_is_no_warning(pytester, installed):
    pytester.makepyfile("def test_it(): pass")
    warning = "error:Module already imported so cannot be rewritten; terzetto"
    run = f"import sys, terzetto, pytest; sys.exit(pytest.main(['-W', {warning!r}, '-q']))"
    result = pytester.run(sys.executable, "-c", run)
    assert result.ret == 0, result.outlines + result.errlines


def test_markers_are_registered(pytester):
    result = pytester.runpytest_inprocess(*PLUGIN, "--markers")
    assert "@pytest.mark.terzetto_explore(model=()" in result.stdout.str()
    assert "@pytest.mark.terzetto_seeds(seeds)" in result.stdout.str()


def test_tests_of_the_page_pass(pytester):
    page = (Path(SOURCE).parent / "docs" / "how-to" / "pytest-plugin.md").read_text("utf-8")
    files = re.findall(r"```python\n# (test_\w+)\.py\n(.*?)```", page, re.DOTALL)
    tests = {name: text.replace("(MODEL)", "(MODEL, stride=9)") for name, text in files}
    pytester.makepyfile(**tests)
    result = pytester.runpytest_inprocess(*PLUGIN, "--strict-markers", "--terzetto-seeds", "3")
    result.assert_outcomes(passed=1 + 3 + 2 + 1)
