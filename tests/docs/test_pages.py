"""What the documentation shows is what happens; `pages` holds the conventions."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

import pytest

from tests.docs import pages
from tests.docs.pages import PageError, Run, blocks, problems

NOT_RUN = 0
"""How many blocks are marked as not run. Each has its reason on the page."""


def name(page: Path) -> str:
    return page.relative_to(pages.ROOT).as_posix()


PAGES = pages.pages()
WITH_CODE = [p for p in PAGES if any(b.runs for b in blocks(p))]
COMMANDS = [(b, words) for p in PAGES for b, words in pages.commands(p)]


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run(page)
    run.play()
    assert run.ran >= 1


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_its_blocks_are_marked_as_they_should_be(page: Path) -> None:
    assert problems(page) == []


@pytest.mark.parametrize(("block", "words"), COMMANDS, ids=[str(b) for b, _ in COMMANDS])
def test_the_program_takes_this_command(block: pages.Block, words: list[str]) -> None:
    pages.check_command(block, words)


def test_hardly_any_block_is_not_run() -> None:
    """The list, when it fails, has the reasons."""
    listed = [f"{b}: {b.reason}" for p in PAGES for b in blocks(p) if b.mark == "not run"]
    assert len(listed) == NOT_RUN, "\n".join(listed)


def test_links_of_the_readme_lead_somewhere() -> None:
    """Those of the other pages are checked by the build."""
    text = (pages.ROOT / "README.md").read_text("utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)|src=\"(?!https?:)([^\"]+)\"", text)
    targets = [one or other for one, other in links]
    assert targets
    assert [target for target in targets if not (pages.ROOT / target).exists()] == []


def test_what_the_readme_claims_is_tested() -> None:
    """Every row of its table names tests, and each is in the file it is linked to."""
    lines = (pages.ROOT / "README.md").read_text("utf-8").splitlines()
    head = lines.index("| The failure | Here | Shown by |")
    rows = lines[head + 2 : lines.index("", head)]
    assert len(rows) >= 10
    for row in rows:
        named = re.findall(r"\[`(test_\w+)`\]\((tests/[\w/]+\.py)\)", row.split(" | ")[2])
        assert named, row
        for test, path in named:
            assert f"def {test}(" in (pages.ROOT / path).read_text("utf-8"), test


# --- the runner itself ------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        (tmp_path / "page.md").write_text(text.replace("'''", "```"))
        return tmp_path / "page.md"

    return write


def test_blocks_share_a_namespace_and_their_output_is_compared(write) -> None:
    page = write(
        "'''python\nx = 2\n'''\nThen\n"
        "'''python\nprint(x + 1, 'or', object())\n'''\nprints\n'''output\n3 or <...>\n'''\n"
    )
    run = Run(page)
    run.play()
    assert run.ran == 2


@pytest.mark.parametrize("printed", ["4", "3\n3", ""])
def test_other_output_than_shown_is_an_error(write, printed: str) -> None:
    page = write(f"'''python\nprint({printed!r}, end='')\n'''\n'''output\n3\n'''\n")
    with pytest.raises(PageError, match=r"page\.md:5: the page shows"):
        Run(page).play()


def test_an_error_names_the_line_of_the_page(write) -> None:
    page = write("# Title\n\n'''python\nx = 1\nx / 0\n'''\n")
    with pytest.raises(ZeroDivisionError) as caught:
        Run(page).play()
    last = caught.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(page), 5)


def test_tests_of_a_page_are_called(write) -> None:
    page = write(
        "'''python\nimport trio\n"
        "async def test_one(autojump_clock, nursery):\n    await trio.sleep(3600)\n"
        "def test_two(tmp_path):\n    (tmp_path / 'two').write_text('')\n'''\n"
        "'''python\ntest_three = test_two\ndef test_four():\n    assert 1 == 2\n'''\n"
    )
    run = Run(page)
    with pytest.raises(AssertionError):
        run.play()
    assert (run.ran, run.tests) == (1, 4)
    assert Path("two").exists()


def test_pages_are_offline_and_see_no_key(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-key")
    page = write(
        "'''python\nimport os\nassert 'OPENAI_API_KEY' not in os.environ\n"
        "import trio\ntrio.run(trio.open_tcp_stream, 'example.org', 80)\n'''\n"
    )
    with pytest.raises(PageError, match=r"offline, but asked for .*example\.org"):
        Run(page).play()
    assert os.environ["OPENAI_API_KEY"] == "sk-not-a-key"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("'''py\n1\n'''\n", "write ```python"),
        ("'''output\n1\n'''\n", "follows a block that is run"),
        ("'''python\n1\n'''\n\n'''text\n1\n'''\n", "is an ```output block"),
        ("'''python\n# one.py\n'''\n'''python\nimport other\n'''\n", "nothing uses one.py"),
        ("<!-- not run:  -->\n'''python\n1\n'''\n", "say why"),
        ("<!-- run by: tests/none.py -->\n'''python\n1\n'''\n", "is no test file"),
        ("<!-- not run: no -->\n'''sh\n1\n'''\n", "only python blocks"),
    ],
)
def test_a_block_that_would_not_be_checked_is_a_problem(write, text: str, problem: str) -> None:
    [found] = problems(write(text))
    assert problem in found


def test_files_are_saved_imported_and_run(write) -> None:
    page = write(
        "'''python\n# one.py\nprint('two', __name__)\n'''\n"
        "'''python\nimport one\n'''\n'''output\ntwo one\n'''\n"
        "'''sh\npython one.py\npython -c 'exit(3)' || echo $?\n'''\n"
        "'''output\ntwo __main__\n3\n'''\n"
    )
    assert problems(page) == []
    run = Run(page)
    run.play()
    assert run.ran == 2
    with pytest.raises(ImportError):
        importlib.import_module("one")


def test_a_command_that_fails_is_an_error(write) -> None:
    with pytest.raises(PageError, match="ended with 3"):
        Run(write("'''sh\npython -c 'exit(3)'\n'''\n")).play()


def test_a_test_file_is_run(write) -> None:
    page = write("'''python\n# test_one.py\ndef test_it():\n    assert 1 == 2\n'''\n")
    with pytest.raises(AssertionError):
        Run(page).play()


def test_a_fence_that_never_closes_is_an_error(write) -> None:
    with pytest.raises(PageError, match="never closed"):
        blocks(write("'''python\n1\n"))


def test_longer_fences_directives_and_indents_are_read(write) -> None:
    page = write(
        "````text\n'''python\nnot code\n'''\n````\n1. first\n\n"
        "   '''{code-block} python\n   :caption: one.py\n   if 1:\n       x = 1\n   '''\n"
    )
    shown, code = blocks(page)
    assert (shown.language, shown.text) == ("text", "```python\nnot code\n```\n")
    assert (code.language, code.line, code.text) == ("python", 10, "if 1:\n    x = 1\n")


@pytest.mark.parametrize("words", ["nonsense", "demo --no-such-option", "chat --modle x"])
def test_a_command_that_the_program_refuses_is_an_error(write, words: str) -> None:
    page = write(f"'''sh\nX=1 .venv/bin/terzetto {words} && true\n'''\n")
    [(block, got)] = list(pages.commands(page))
    with pytest.raises(PageError):
        pages.check_command(block, got)
