"""The mutants fit the engine as it is, and the command tells a caught one from a missed one.

That all of them are caught is the business of ``python -m tests.mutants``.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from attrs import evolve
from tests.mutants.__main__ import main, planted, untouched
from tests.mutants.mutant import ROOT, SOURCE, Explorer, Law, Mutant, copied
from tests.mutants.planted import MUTANTS
from tests.mutants.strike import POWER

from terzetto.testing import SOURCES
from terzetto.testing._shipped import SHIPPED

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
SOURCE_NAMES = {source.name for source in SOURCES} | {POWER}


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(MUTANTS) >= 60


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_fits_once_and_is_python(mutant: Mutant) -> None:
    """A mutant whose place has gone, or that cannot be imported, proves nothing."""
    text = (SOURCE / mutant.path).read_text("utf-8")
    assert text.count(mutant.old) == 1
    changed = text.replace(mutant.old, mutant.new)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_who_notices_it_is_there(mutant: Mutant) -> None:
    assert mutant.breaks
    if isinstance(mutant.by, Explorer):
        assert mutant.by.scenario in SHIPPED
        assert set(mutant.by.sources) <= SOURCE_NAMES
    elif isinstance(mutant.by, Law):
        for test in mutant.by.tests:
            path, _, name = test.partition("::")
            assert (ROOT / path).exists()
            assert not name or f"def {name.partition('[')[0]}(" in (ROOT / path).read_text("utf-8")


def test_a_mutant_that_does_not_fit_says_so(tmp_path: Path) -> None:
    lost = evolve(BY_NAME["slot-leaked"], old="what nobody wrote")
    package = copied(tmp_path) / "terzetto"
    with pytest.raises(ValueError, match=r"expected its text once in tools/_batch\.py, found 0"):
        lost.apply(package)


def test_one_that_breaks_is_noticed_and_one_that_does_not_is_not() -> None:
    leaked = BY_NAME["slot-leaked"]
    assert planted(leaked).noticed
    # The same place, and nothing else than before comes of it.
    harmless = evolve(leaked, new=leaked.old.replace("-= 1", "-= 2 - 1"))
    seen = planted(harmless)
    assert not seen.noticed
    assert "0 violations" in seen.said
    assert seen.said == untouched(leaked.by).said


def test_an_engine_that_cannot_be_imported_is_not_one_that_was_noticed() -> None:
    leaked = BY_NAME["slot-leaked"]
    seen = planted(evolve(leaked, new="        raise Never(\n"))
    assert not seen.noticed
    assert seen.said.startswith("exit status ")


def test_the_command_lists_refuses_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(MUTANTS)
    assert main(["--only", "nobody"]) == 2
    assert "no such mutant: nobody" in capsys.readouterr().err
    assert main(["--only", "slot-leaked", "--jobs", "1"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("caught  slot-leaked")
    assert told[-1] == "1 mutants, 1 caught, 0 missed, 0 false alarms"
