"""The vocabulary of the core packages: refuses words with an established term; in `make check`.

Comments, docstrings, messages and identifiers use the terms of the field: an offset is *after*
another, a failure is *logged*, a lease is *released*. Each rule names the words to use instead.
A word that a protocol, a public name or a library prescribes is listed in `ALLOWED`.

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
    findings = check(sources)
    for finding in findings:
        sys.stdout.write(f"{finding}\n")
    if findings:
        exceptions = Path(__file__).relative_to(ROOT)
        sys.stdout.write(f"{len(findings)} words to replace; {exceptions} lists the exceptions.\n")
    else:
        sys.stdout.write(f"The vocabulary of {len(sources)} files is fine.\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
