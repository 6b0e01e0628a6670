"""The README's example runs as it stands, against a model server on loopback."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import trio

from terzetto.llm.loopback import serve_openai
from terzetto.llm.scripted import answer, call, say

ROOT = Path(__file__).resolve().parents[1]


def example() -> str:
    """The first Python block of the README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


async def test_the_example_answers_after_a_tool_round_trip(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(example())
    (tmp_path / "notes.txt").write_text("a long file")
    script = [answer(call("read_file", path="notes.txt")), answer(say("notes.txt is the longest."))]
    async with serve_openai(script) as server:
        environment = {
            **os.environ,
            "DEEPSEEK_API_KEY": "sk-not-a-key",
            "DEEPSEEK_BASE_URL": server.base_url,
            "PYTHONPATH": str(ROOT / "src"),
        }
        with trio.fail_after(60):
            done = await trio.run_process(
                [sys.executable, "example.py"],
                cwd=tmp_path,
                env=environment,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout == b"notes.txt is the longest.\n"
        assert "a long file" in str(server.requests[1].body["messages"])


def test_the_commands_are_one_line_each() -> None:
    """`.ci/run` and a newcomer take them as they stand."""
    lines = re.findall(r"```sh\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert [line for line in lines if "\n" in line] == []
    assert sum("terzetto demo" in line for line in lines) == 1
    assert sum("pytest" in line for line in lines) == 1
