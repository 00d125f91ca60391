"""From a TOML or Python file, or flags, to a pipeline, with all problems told at once."""

import difflib
import importlib.util
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import Struct, structs

from headwater.client import DEFAULT_URL
from headwater.errors import BadPipeline
from headwater.spark.pipelines.problems import Problem, are_fatal
from headwater.spark.pipelines.rules import contradictions
from headwater.spark.pipelines.values import (
    TARGETS,
    Materialize,
    Pipeline,
    Source,
    Transform,
    as_text,
)

_VARIABLE: Final = re.compile(r"\$(\w+)|\$\{(\w+)\}")
_EXPECTED: Final = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$")
_FIELD: Final = re.compile(r"\w+")
_CHOICE: Final = re.compile(r"Invalid enum value ('.*')", re.DOTALL)
_MISSING: Final = re.compile(r"missing required field `(\w+)`")
_NO_SESSION: Final = "SparkSession should be created first"
_OF_SERVER: Final = {"url": str, "token": str, "headers": dict}
_PATHS: Final = {
    "": ("checkpoint", "metrics_file"),
    "source": ("table",),
    "target": ("folder", "tables"),
}


def load(path: str | Path, environment: Mapping[str, str] | None = None) -> Pipeline:
    """Read a pipeline file; raises `BadPipeline` with all that is wrong with it."""
    pipeline, problems = read_file(Path(path), environment)
    if pipeline is None or are_fatal(problems):
        raise BadPipeline(str(path), problems)
    return pipeline


class Reading(Struct, frozen=True):
    """A file as far as it can be read."""

    pipeline: Pipeline | None
    """As if what is wrong were left out; None where nothing can be made of the rest."""
    problems: list[Problem]
    unknown: frozenset[str] = frozenset()
    """The places of which the pipeline does not say what the file was meant to."""

    @property
    def whole(self) -> tuple[Pipeline | None, list[Problem]]:
        return (None if self.unknown else self.pipeline), self.problems


def read_file(
    path: Path, environment: Mapping[str, str] | None = None
) -> tuple[Pipeline | None, list[Problem]]:
    """Read a pipeline file, and tell what is wrong with it; None where it is not whole."""
    return read_partly(path, environment).whole


def read_partly(path: Path, environment: Mapping[str, str] | None = None) -> Reading:
    """Read a pipeline file as far as that goes, and tell what is wrong with it."""
    try:
        document = _python(path) if path.suffix == ".py" else tomllib.loads(path.read_text())
    except OSError as error:
        return Reading(
            None, [Problem("", f"can't be read ({error.strerror}): name a pipeline file")]
        )
    except UnicodeDecodeError:
        return Reading(None, [Problem("", "is no text: name a TOML or a Python file")])
    except tomllib.TOMLDecodeError as error:
        return Reading(None, [Problem("", f"is no TOML: {error}")])
    except _NotRun as error:
        return Reading(None, [error.problem])
    document.setdefault("name", path.stem)
    return _read(document, path.parent, environment)


def read_document(
    document: Mapping[str, Any], folder: Path, environment: Mapping[str, str] | None = None
) -> tuple[Pipeline | None, list[Problem]]:
    """Make a pipeline of what a file holds; relative paths are relative to `folder`."""
    return _read(document, folder, environment).whole


def _read(
    document: Mapping[str, Any], folder: Path, environment: Mapping[str, str] | None
) -> Reading:
    environment = os.environ if environment is None else environment
    found = _Found()
    filled = _filled(dict(document), "", environment, found)
    _take_paths(filled, folder.absolute())
    _take_servers(filled, environment)
    name = filled.get("name")
    if not (isinstance(name, str) and re.fullmatch(r"[\w.-]+", name)):
        found.tell("name", "is made of letters, digits, '-', '_' and '.'", "name", "checkpoint")
        filled["name"] = ""
    elif not filled.get("checkpoint"):
        filled["checkpoint"] = str(folder.absolute() / "checkpoints" / name)
    if isinstance(filled.get("spark"), dict):
        filled["spark"] = _settings(filled["spark"])
    _tell_unknown_fields(filled, Pipeline, "", found)
    parts: dict[str, Any] = {}
    parts["source"] = _section(filled.pop("source", {}), Source, "source", found) or Source()
    transforms = filled.pop("transform", [])
    if isinstance(transforms, dict):
        transforms = [transforms]
    if not isinstance(transforms, list | tuple):
        found.tell("transform", "is a list: begin each with [[transform]]")
        transforms = []
    parts["transform"] = tuple(
        _step(one, f"transform {number}", found) for number, one in enumerate(transforms, 1)
    )
    parts["target"] = _target(filled.pop("target", None), found) or Materialize(tables="")
    pipeline = _section({**filled, **parts}, Pipeline, "", found)
    if pipeline is None:
        return Reading(None, found.problems)
    problems = found.problems + contradictions(pipeline, found.unknown)
    return Reading(pipeline, list(dict.fromkeys(problems)), frozenset(found.unknown))


class _Found:
    """What is wrong with a document, and of which places it is not known what they should say."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.unknown: set[str] = set()

    def tell(self, where: str, what: str, *unknown: str) -> None:
        """Add a problem; what is not known is the place itself, if nothing else is said."""
        self.problems.append(Problem(where, what))
        self.unknown.update(unknown or [where])


def module_at(path: Path) -> ModuleType:
    """Run a Python file as a module; whatever it raises comes out."""
    name = f"headwater_pipeline_{re.sub(r'[^0-9A-Za-z_]', '_', str(path.absolute()))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # else what it defines could not be found again
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class _NotRun(Exception):
    """A Python file gives no pipeline."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def _python(path: Path) -> dict[str, Any]:
    """Run a Python file, and take its `pipeline`: a mapping as TOML has it, or a `Pipeline`."""
    path.read_bytes()  # a file that is not there is told as such
    try:
        module = module_at(path)
    except Exception as error:
        raise _NotRun(Problem("", _told(error))) from error
    value = getattr(module, "pipeline", None)
    if isinstance(value, Pipeline):
        value = msgspec.to_builtins(value)
    if not isinstance(value, dict):
        what = "has to set 'pipeline' to a dict with name, source, transform, target"
        raise _NotRun(Problem("", what))
    document = dict(value)
    steps = document.get("transform", [])
    if isinstance(steps, list | tuple):
        document["transform"] = [_named(step, module, path) for step in steps]
    return document


def _named(step: Any, module: ModuleType, path: Path) -> Any:
    """Write a function that stands in a Python file by its name, as TOML would."""
    function = step.get("python") if isinstance(step, dict) else step
    if not callable(function):
        return step
    name = getattr(function, "__name__", "")
    if getattr(module, name, None) is not function:
        what = f"{name or function} has to be a function that the file defines by its name"
        raise _NotRun(Problem("transform", what))
    return {**(step if isinstance(step, dict) else {}), "python": f"{path.absolute()}:{name}"}


def _filled(value: Any, where: str, environment: Mapping[str, str], found: _Found) -> Any:
    """Put environment variables in the place of texts that are `$NAME`."""
    if isinstance(value, Mapping):
        inner = {"sql", "python"}  # a dollar in there is none of ours
        return {
            name: one
            if name in inner
            else _filled(one, f"{where}.{name}" if where else str(name), environment, found)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_filled(one, where, environment, found) for one in value]
    named = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
    if named is None:
        return value
    name = named[1] or named[2]
    if name not in environment:
        found.tell(where, f"the environment variable {name} is not set: set it")
    return environment.get(name, "")


def _take_paths(document: dict[str, Any], folder: Path) -> None:
    for section, names in _PATHS.items():
        part = document.get(section) if section else document
        if isinstance(part, dict):
            for name in names:
                if isinstance(part.get(name), str) and part[name].strip():
                    part[name] = _absolute(part[name], folder)
    steps = document.get("transform")
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict) and isinstance(step.get("python"), str):
            file, colon, function = step["python"].rpartition(":")
            if file.endswith(".py"):
                step["python"] = f"{_absolute(file, folder)}{colon}{function}"


def _absolute(path: str, folder: Path) -> str:
    return path if "://" in path else str(folder / Path(path).expanduser())


def _take_servers(document: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Fill in servers: the source's is the environment's, and the target's is the source's."""
    source = document.setdefault("source", {})
    if not isinstance(source, dict):
        return
    if not source.get("url"):
        source["url"] = environment.get("HEADWATER_URL") or DEFAULT_URL
    target = document.get("target")
    if not isinstance(target, dict):
        return
    known = TARGETS.get(str(target.get("kind")))
    if known is not None and "url" in known.__struct_fields__ and not target.get("url"):
        target |= {
            name: source[name]
            for name, kind in _OF_SERVER.items()
            if isinstance(source.get(name), kind)  # what is wrong is told of the source alone
        }


def _settings(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Write settings by their whole names: TOML makes tables of names with dots."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        whole = f"{before}.{name}" if before else name
        if isinstance(value, Mapping):
            flat |= _settings(value, whole)
        else:
            full = whole if whole.startswith("spark.") else f"spark.{whole}"
            flat[full] = as_text(value) if isinstance(value, str | bool | int | float) else value
    return flat


def _step(document: Any, where: str, found: _Found) -> Any:
    before = len(found.problems)
    step = _section(document, Transform, where, found)
    if len(found.problems) > before:
        found.unknown.add(where)  # its fields exclude each other
    return step or Transform()


def _target(document: Any, found: _Found) -> Any:
    kinds = ", ".join(TARGETS)
    if not isinstance(document, dict) or "kind" not in document:
        found.tell("target", f"say where rows go: [target] with a kind of {kinds}")
        return None
    kind = TARGETS.get(str(document["kind"]))
    if kind is None:
        found.tell("target.kind", f"'{document['kind']}' is none of {kinds}", "target")
        return None
    return _section(document, kind, "target", found)


def _section(document: Any, kind: type[Struct], where: str, found: _Found) -> Any:
    """Make a value of one section; None, and a problem, where that can't be.

    A field of a wrong type is a problem, and is taken as left out, so that the others are told too;
    one that is needed is taken as an empty text.
    """
    if isinstance(document, kind):
        return document
    if not isinstance(document, Mapping):
        found.tell(where, f"expected `object`, got `{type(document).__name__}`")
        return None
    if where:
        _tell_unknown_fields(document, kind, where, found)
    fields = {*kind.__struct_fields__, "kind"}
    known = {name: one for name, one in document.items() if name in fields}
    while True:
        try:
            return msgspec.convert(known, kind)
        except msgspec.ValidationError as error:
            what = str(error)
            at = _EXPECTED.search(what)
            place, told = (at[1], what[: at.start()]) if at else ("", what)
            wrong = _FIELD.match(place) or _MISSING.search(told)
            field = wrong[wrong.lastindex or 0] if wrong else ""
            is_needed = field in _required(kind)
            if not field or (is_needed and known.get(field) == ""):
                found.tell(where or "pipeline", what[:1].lower() + what[1:])
                return None
            choice = _CHOICE.match(told)
            if choice is not None:
                told = f"{choice[1]} is none of {', '.join(_choices(kind, field))}"
            found.tell(_within(where, place), told[:1].lower() + told[1:], _within(where, field))
            known.pop(field, None)
            if is_needed:
                known[field] = ""


def _within(where: str, place: str) -> str:
    return ".".join(filter(None, (where, place)))


def _required(kind: type[Struct]) -> set[str]:
    return {field.name for field in structs.fields(kind) if field.required}


def _choices(kind: type[Struct], name: str) -> Iterator[str]:
    """Give the texts that a field may be."""
    (hint,) = (field.type for field in structs.fields(kind) if field.name == name)
    for each in (hint, *get_args(hint)):  # itself, or beside None
        if get_origin(each) is Literal:
            yield from get_args(each)


def _tell_unknown_fields(
    document: Mapping[str, Any], kind: type[Struct], where: str, found: _Found
) -> None:
    known = list(kind.__struct_fields__)
    if kind.__struct_config__.tag is not None:
        known.append("kind")
    for name in document:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}"
            place = _within(where, str(name))
            meant = [_within(where, each) for each in near if each not in document]
            found.tell(place, f"there is no such field; {hint}", place, *meant)


def _told(error: Exception) -> str:
    if _NO_SESSION in str(error):
        return "needs Spark when it is read: make UDFs within functions, or in another file"
    return f"can't be run ({type(error).__name__}: {error})"
