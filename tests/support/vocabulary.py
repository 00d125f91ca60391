"""The vocabulary of the core packages: refuses words with an established term; in `make check`.

Comments, docstrings, messages, identifiers and pages of the documentation use the terms of the
field: an offset is *after* another, a failure is *logged*, a lease is *released*. Each rule names
the words to use instead. A word that a protocol, a public name or a library prescribes is listed in
`ALLOWED`.

A public class name stands for one idea: it may occur twice only if it is listed in `SHARED_NAMES`.

Use: `python -m tests.support.vocabulary`, or with paths to check those.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
CORE: Final = ROOT / "src/headwater"

CHECKED: Final = ("cli", "client", "errors", "protocol", "server", "storage")
"""The parts of the package that are checked."""

PAGES: Final = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md"),
    *("docs/asgi.md", "docs/cli.md", "docs/client.md", "docs/configuration.md", "docs/http.md"),
    *("docs/performance.md", "docs/quick-start.md", "docs/storage.md", "docs/subscriptions.md"),
    "docs/testing.md",
    *("docs/decisions/000*.md", "docs/decisions/001[0-8]*.md", "docs/decisions/0030*.md"),
    *("docs/decisions/0034*.md", "docs/decisions/004[3579]*.md", "docs/decisions/0048*.md"),
    *("docs/decisions/005[015-9]*.md", "docs/decisions/006*.md"),
)
"""Patterns of the pages that are checked, outside of their code."""


class Rule(NamedTuple):
    """Words that are refused, and those to use instead."""

    pattern: re.Pattern[str]
    instead: str
    in_names: bool = True
    """Whether identifiers are checked too, split into their words."""


def _rule(words: str, instead: str, *, in_names: bool = True) -> Rule:
    return Rule(re.compile(rf"\b(?:{words})\b", re.IGNORECASE), instead, in_names)


RULES: Final = (
    _rule(r"told|tell|tells|telling|untold", "'reported', 'returned', 'logged' or 'whether'"),
    _rule(r"behind(?! (?:a|the) (?:reverse )?(?:proxy|load balancer))", "'after' or 'past'"),
    _rule(r"figures?", "'metrics' or 'statistics'"),
    _rule(
        r"nobody|somebody|someone|anybody|everybody|everyone|whoever",
        "'the caller', 'the client', 'the user' or a passive",
    ),
    _rule(r"anew", "'again'"),
    _rule(r"aside", "'quarantined' or 'moved'"),
    _rule(r"let(?:s|ting)?\s+go", "'release', 'drop' or 'free'"),
    _rule(r"how\s+far", "'position', 'progress' or 'the offset up to which'"),
    _rule(r"by\s+(?:itself|themselves)", "'automatically' or 'alone'", in_names=False),
    _rule(r"under\s+way", "'in flight' or 'in progress'"),
    _rule(r"(?:take|takes|taken|taking|took)\s+in", "'accept', 'include' or 'match'"),
    _rule(r"hand(?:s|ed|ing)?\s+over", "'pass', 'queue' or 'submit'"),
    _rule(r"noted", "'recorded' or 'stored'"),
    _rule(r"(?:says?|said)\s+so", "what is reported"),
    _rule(r"a\s+person|people", "'the user' or 'the operator'", in_names=False),
    _rule(r"go(?:es|ing)?\s+on|went\s+on", "'continue'"),
    _rule(r"cut\s+short|unfold(?:s|ed|ing)?", "'truncated', or 'decoded' for a body"),
    _rule(r"for\s+ever", "'forever' or 'indefinitely'"),
    _rule(r"carr(?:y|ies|ied|ying)\s+out", "'execute' or 'run'"),
    _rule(r"lies|lay|lain", "'is', with 'in', 'before' or 'after'", in_names=False),
    _rule(r"(?:hold|held|holds)\s+back", "'delayed', 'reserved' or 'buffered'"),
    _rule(r"by\s+turns|at\s+hand|as\s+good\s+as", "'in turns', 'available' or 'like'"),
    _rule(r"in\s+the\s+midst", "'during'"),
)
DOCSTRING_VERB: Final = Rule(
    re.compile(r'\A[rbf]*"""(?:Says?|Gives?)\b', re.IGNORECASE),
    "'Return' as the verb of a docstring",
)


class Allowed(NamedTuple):
    """A refused word that has to stay."""

    path: str
    line: str
    """A part of the source line."""
    reason: str


ALLOWED: Final = (
    Allowed("src/headwater/cli/pipeline_report.py", "outcome.figures", "a name of headwater.spark"),
    Allowed("src/headwater/cli/pipeline_run.py", "outcome.figures", "a name of headwater.spark"),
    Allowed("src/headwater/cli/pipeline_run.py", "Told", "a name of headwater.spark"),
    Allowed("src/headwater/cli/pipeline_run.py", "reached, told", "a name of headwater.spark"),
    Allowed("src/headwater/cli/pipeline_run.py", "told(metrics", "a name of headwater.spark"),
    Allowed("src/headwater/server/runs/routes.py", "eventsBehind", "a name of the run contract"),
)


SHARED_NAMES: Final = frozenset(
    {
        # What the server refuses, and the error that the client raises for it.
        *("ContentTypeMismatch", "StreamClosed", "StreamGone", "StreamNotFound"),
        # What a store or the server returns, and what the client returns for it.
        *("Acked", "Appended", "Created", "SplitPoints", "StreamInfo", "SubscriptionCreated"),
        # The two ends of HTTP.
        *("Request", "Response"),
    }
)
"""Names of classes that are one idea at two layers."""


class Finding(NamedTuple):
    """A refused word in a file."""

    path: Path
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: '{self.word}' - say {self.instead}"


def check_source(path: Path, source: str, allowed: Iterable[Allowed] = ()) -> Iterator[Finding]:
    """Yield the refused words in the text of a file."""
    lines = source.splitlines()
    marks = [item.line for item in allowed if item.path == path.as_posix()]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        for word, offset, instead in _refused(token):
            number = token.start[0] + offset
            if not any(mark in lines[number - 1] for mark in marks):
                yield Finding(path, number, word, instead)


def check_page(path: Path, text: str) -> Iterator[Finding]:
    """Yield the refused words in a page, outside of code."""
    prose = re.sub(r"```.*?```|`[^`]*`", _blank, text, flags=re.DOTALL)
    for rule in RULES:
        for match in rule.pattern.finditer(prose):
            line = prose.count("\n", 0, match.start()) + 1
            yield Finding(path, line, " ".join(match[0].split()), rule.instead)


def _blank(code: re.Match[str]) -> str:
    return "\n" * code[0].count("\n")


def _refused(token: tokenize.TokenInfo) -> Iterator[tuple[str, int, str]]:
    """Yield the refused words of a token, each with its line within the token."""
    kind = tokenize.tok_name[token.type]
    if kind == "NAME":
        text = _words(token.string)
        rules = [rule for rule in RULES if rule.in_names]
    elif kind in {"STRING", "FSTRING_MIDDLE", "COMMENT"}:
        text = token.string
        rules = [*RULES, DOCSTRING_VERB] if kind == "STRING" else [*RULES]
    else:
        return
    for rule in rules:
        for match in rule.pattern.finditer(text):
            word = match[0].strip('"')
            yield " ".join(word.split()), text.count("\n", 0, match.start()), rule.instead


def _words(name: str) -> str:
    """Split an identifier: `toldOffset` and `told_offset` are two words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name.replace("_", " "))


def check_class_names(sources: Mapping[Path, str]) -> Iterator[Finding]:
    """Yield public classes that have the name of another one."""
    seen: dict[str, Path] = {}
    for path, source in sources.items():
        for node in ast.parse(source).body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if seen.setdefault(node.name, path) != path and node.name not in SHARED_NAMES:
                other = f"another name, {seen[node.name]} has a class of this name"
                yield Finding(path, node.lineno, node.name, other)


def read_sources(paths: Iterable[Path]) -> dict[Path, str]:
    """Read all Python files below some paths."""
    return {
        file.resolve().relative_to(ROOT): file.read_text()
        for path in paths
        for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])
    }


def read_pages() -> dict[Path, str]:
    """Read all pages of `PAGES`."""
    return {
        file.relative_to(ROOT): file.read_text()
        for pattern in PAGES
        for file in sorted(ROOT.glob(pattern))
    }


def check(sources: Mapping[Path, str]) -> list[Finding]:
    """Return all findings in some files."""
    findings = [
        finding
        for path, source in sources.items()
        for finding in check_source(path, source, ALLOWED)
    ]
    return [*findings, *check_class_names(sources)]


def main(arguments: list[str]) -> int:
    paths = [Path(each) for each in arguments] or [CORE / part for part in CHECKED]
    sources = read_sources(paths)
    pages = {} if arguments else read_pages()
    findings = check(sources)
    for path, text in pages.items():
        findings += check_page(path, text)
    for finding in findings:
        sys.stdout.write(f"{finding}\n")
    if findings:
        exceptions = Path(__file__).relative_to(ROOT)
        sys.stdout.write(f"{len(findings)} words to replace; {exceptions} lists the exceptions.\n")
    else:
        sys.stdout.write(f"The vocabulary of {len(sources) + len(pages)} files is fine.\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
