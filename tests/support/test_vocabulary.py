"""The vocabulary check of `make check`."""

from pathlib import Path

import pytest

from tests.support.vocabulary import (
    ALLOWED,
    CHECKED,
    CORE,
    PAGES,
    ROOT,
    Allowed,
    check,
    check_class_names,
    check_page,
    check_source,
    read_pages,
    read_sources,
)

FILE = Path("src/headwater/some.py")


@pytest.mark.parametrize(
    ("source", "line", "word"),
    [
        ('"""Pass.\n\nThe reader is told of it.\n"""\n', 3, "told"),
        ("x = 1\nx = 2  # what follows behind it\n", 2, "behind"),
        ('raise ValueError(\n    f"{x}: nobody is there"\n)\n', 2, "nobody"),
        ("def f(how_far: int) -> None: ...\n", 1, "how far"),
        ("class ToldOffset: ...\n", 1, "Told"),
        ('"""The lease is let\ngo of."""\n', 1, "let go"),
        ('"""Give the next offset."""\n', 1, "Give"),
    ],
    ids=["docstring", "comment", "message", "name", "class", "two lines", "verb"],
)
def test_a_refused_word_is_reported_with_its_line(source: str, line: int, word: str) -> None:
    (finding,) = check_source(FILE, source)
    assert (finding.line, finding.word) == (line, word)
    assert str(finding).startswith(f"src/headwater/some.py:{line}: '{word}' - say '")


@pytest.mark.parametrize(
    "source",
    [
        "# The server may run behind a proxy.\n",
        "# An untellable metric, besides configures.\n",
        'text = "Give it back."\n',
    ],
    ids=["proxy", "parts of words", "no docstring"],
)
def test_other_uses_of_a_word_are_not_refused(source: str) -> None:
    assert list(check_source(FILE, source)) == []


def test_a_refused_word_of_a_page_is_reported_with_its_line_unless_it_is_code() -> None:
    page = "# Offsets\n\n```python\ntold = 1\n```\n\nWhat `told` holds is told.\n"
    (finding,) = check_page(Path("docs/some.md"), page)
    assert (finding.line, finding.word) == (7, "told")


def test_every_pattern_names_a_page_and_all_pages_are_fine() -> None:
    assert all(list(ROOT.glob(pattern)) for pattern in PAGES if "006" not in pattern)
    pages = read_pages()
    assert [found for path, text in pages.items() for found in check_page(path, text)] == []


def test_an_allowed_line_is_not_refused_in_its_file_only() -> None:
    source = "lag.events_behind\n"
    allowed = Allowed(FILE.as_posix(), "events_behind", "a public name")
    assert list(check_source(FILE, source, [allowed])) == []
    assert len(list(check_source(Path("src/headwater/other.py"), source, [allowed]))) == 1


def test_a_class_name_that_occurs_twice_is_reported() -> None:
    here, there = Path("src/headwater/a.py"), Path("src/headwater/b.py")
    source = "class Reader: ...\nclass _Private: ...\nclass Appended: ...\n"
    (finding,) = check_class_names({here: source, there: source})
    assert (finding.path, finding.line, finding.word) == (there, 1, "Reader")
    assert str(here) in str(finding)


def test_the_checked_packages_use_no_refused_word() -> None:
    assert check(read_sources(CORE / part for part in CHECKED)) == []


def test_every_exception_is_needed() -> None:
    for allowed in ALLOWED:
        path = Path(allowed.path)
        lines = (ROOT / path).read_text().splitlines()
        refused = {finding.line for finding in check_source(path, (ROOT / path).read_text())}
        assert any(allowed.line in lines[number - 1] for number in refused), allowed
