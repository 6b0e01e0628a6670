"""Where there is no Chromium: skipped with a reason here, a failure where it is required."""

from __future__ import annotations

import pytest
from tests.examples import browser


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser.shutil, "which", lambda name: None)


@pytest.mark.parametrize(
    ("required", "raised"), [(False, pytest.skip.Exception), (True, pytest.fail.Exception)]
)
def test_a_missing_chromium_is_told(
    nowhere: None, monkeypatch: pytest.MonkeyPatch, required: bool, raised: type[BaseException]
) -> None:
    monkeypatch.setattr(browser, "REQUIRED", required)
    with pytest.raises(raised, match="needs Chromium: found none of chromium"):
        browser.chromium()
