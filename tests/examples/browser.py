"""A real Chromium for the web example: the one of this machine, driven by Playwright.

Playwright's wheel brings its driver; no browser is downloaded. Without Chromium the tests are
skipped, unless ``TERZETTO_REQUIRE_CHROMIUM`` is 1: then they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

REQUIRED = os.environ.get("TERZETTO_REQUIRE_CHROMIUM") == "1"
"""Set in `.ci/run`: there, a test that is skipped would be a test that nobody runs."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_MS = 45_000
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Keeps every state that a tool's card ever had, however briefly: `states()` in a page.
WATCH = """
    window.seen = [];
    new MutationObserver((list) => {
      for (const one of list) window.seen.push([one.target.dataset.name, one.oldValue]);
    }).observe(document, {subtree: true, attributeFilter: ["data-state"], attributeOldValue: true});
"""


def chromium() -> str:
    """Where Chromium is; the test is skipped, or fails, when it is nowhere."""
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    reason = f"needs Chromium: found none of {', '.join(NAMES)} on PATH"
    if REQUIRED:
        pytest.fail(f"{reason}, and TERZETTO_REQUIRE_CHROMIUM is 1")
    pytest.skip(reason)


async def browse(scene: Callable[..., None], *arguments: object, profile: Path) -> None:
    """Run *scene* in a thread, with a fresh browser as its first argument.

    Playwright's plain interface wants a thread without an event loop; a scene reaches the
    test's Trio thread by `trio.from_thread`.
    """
    executable = chromium()
    if not REQUIRED:
        pytest.importorskip("playwright.sync_api")
    from playwright import sync_api

    def run() -> None:
        sync_api.expect.set_options(timeout=PATIENCE_MS)
        with sync_api.sync_playwright() as playwright:
            context = playwright.chromium.launch_persistent_context(
                profile,
                executable_path=executable,
                headless=True,
                args=ARGUMENTS,
                viewport={"width": 1280, "height": 860},
                locale="en-GB",
            )
            try:
                context.set_default_timeout(PATIENCE_MS)
                context.add_init_script(WATCH)
                scene(context, *arguments)
            finally:
                context.close()

    await trio.to_thread.run_sync(run)
