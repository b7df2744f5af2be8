"""Recipes: a pipeline as a YAML file.

    file or name --load_recipe--> Recipe --with_paths, with_overrides--> Recipe --build--> Pipeline
                                    ^                                                         |
                                    +------------------------ recipe_of ----------------------+

    name: clean                     optional, as are description, memory, gpu_memory, workers, rejects
    memory: 4GB
    steps:
      - jsonl_reader: {file_paths: in/}
      - word_count: {min_words: 3}
      - language: {}
        optional: true
      - parquet_writer: {path: out/}

Steps have the names that `tamis ops` lists. Paths in a recipe are relative to the recipe file; paths given on the command
line are relative to the current directory. A recipe may omit the reader and the writer; `--input` and `--output` add them.

A step that is optional is left out, with a note, if a package or a model that it needs is not on this machine, or if it reads a
column that only such a step would have written. Setting one of its parameters on the command line makes it required.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamis.card import check_license
from tamis.curator_names import parameter_hint
from tamis.errors import MissingExtra, ParameterError, RecipeError, TamisError, did_you_mean
from tamis.executors.failures import parse_max_failed
from tamis.functions import Function
from tamis.memory.alerts import parse_alerts
from tamis.models.files import ModelError
from tamis.operators import Filter, Operator, Sink, Source
from tamis.parameters import fits, parse_bytes
from tamis.recipes.document import MAX_BYTES, Entry, Position, read_document, read_value, write_document
from tamis.recipes.paths import MIX, located, located_sources, reader_step, writer_step
from tamis.registry import build_operator, find_operator, registered
from tamis.report import load_manifest

if TYPE_CHECKING:
    from tamis.pipeline import Pipeline


@dataclass(frozen=True)
class Step:
    """An operator by its recipe name, with its parameters."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    position: Position | None = field(default=None, compare=False)
    """Where the file names it; None for steps that were added."""
    keys: Mapping[str, Position] = field(default_factory=dict, compare=False)
    values: Mapping[str, Position] = field(default_factory=dict, compare=False)
    """Where the file has the names and the values of parameters."""

    optional: bool = False
    """Whether it is left out if a package or a model that it needs is missing."""

    def position_of(self, error: TamisError) -> Position | None:
        """Where the mistake is that an error is about: the name or the value of a parameter, or else the step."""
        if isinstance(error, ParameterError):
            for name, position in self.keys.items():
                if f"`{name}`" in error.message:
                    return position if "has no parameter" in error.message else self.values[name]
        return self.position


@dataclass(frozen=True)
class Settings:
    """Run settings of a recipe, which the caller can override."""

    memory: int | str | None = None
    workers: int | str | None = None
    rejects: bool | None = None
    card: bool | None = None
    license: str | None = None
    """For the dataset card."""
    max_failed: float | str | None = None
    """How many rows or files may fail before the run ends."""
    alerts: Mapping[str, Any] | None = None
    """When to raise alerts about memory, and who receives them."""
    gpu_memory: int | str | None = None
    """What the workers on one GPU may hold together."""

    def __post_init__(self) -> None:
        for size in (self.memory, self.gpu_memory):
            if size is not None:
                parse_bytes(size)
        if self.workers is not None and self.workers != "auto" and not (fits(self.workers, int) and self.workers > 0):  # type: ignore[operator]
            raise ParameterError(f"`workers` must be a positive number or auto, got {self.workers!r}")
        if not fits(self.rejects, bool | None):
            raise ParameterError(f"`rejects` must be true or false, got {self.rejects!r}")
        if not fits(self.card, bool | None):
            raise ParameterError(f"`card` must be true or false, got {self.card!r}")
        check_license(self.license)
        if self.max_failed is not None:
            parse_max_failed(self.max_failed)
        try:
            parse_alerts(self.alerts)
        except ParameterError as error:
            message = error.message if "`alerts`" in error.message else f"`alerts`: {error.message}"
            raise ParameterError(message, hint=error.hint) from error


TOKENS, SEQUENCE_LENGTH = "token_writer", 4096
"""The step that writes tokens, and how long its sequences are unless a recipe says otherwise (Llama 2)."""

_SETTINGS = tuple(spec.name for spec in dataclasses.fields(Settings))
_KEYS = ("name", "description", *_SETTINGS, "steps")


@dataclass(frozen=True)
class Recipe:
    """A pipeline as data. Changes give a new recipe."""

    steps: tuple[Step, ...]
    name: str = ""
    description: str = ""
    settings: Settings = Settings()
    where: str = field(default="", compare=False)
    """The file it was read from, for messages."""

    def with_paths(
        self, *, input: str | Path | Sequence[str | Path] | None = None, output: str | Path | None = None
    ) -> Recipe:
        """Read from `input` with the reader that fits its files, write to `output`.

        A reader of another format is replaced and keeps the parameters both know. A writer that is named keeps its
        format; one that is added writes the format of the input.
        """
        steps = list(self.steps)
        if input is not None:
            paths = [str(path) for path in ([input] if isinstance(input, (str, Path)) else input)]
            place = self._find("source")
            with self._within(place) if place is not None else nullcontext():
                name, parameters = reader_step(paths, self._pair(place), self._pairs())
            if place is None:
                steps.insert(0, Step(name, parameters))
            else:
                steps[place] = replace(steps[place], name=name, parameters=parameters)
        result = replace(self, steps=tuple(steps))
        if output is None:
            return result
        place = result._find("sink")
        with result._within(place) if place is not None else nullcontext():
            name, parameters = writer_step(str(output), result._pair(place), result._pair(result._find("source")))
        if place is None:
            steps.append(Step(name, parameters))
        else:
            steps[place] = replace(steps[place], name=name, parameters=parameters)
        return replace(result, steps=tuple(steps))

    def with_tokens(self, tokenizer: str | Path) -> Recipe:
        """Shuffle the rows that remain, and write their tokens, packed into sequences, instead of the rows.

        A recipe that has these steps keeps them. The end of documents is the token that the tokenizer has for it.
        """
        steps = list(self.steps)
        place = self._find("sink")
        if place is not None and steps[place].name != TOKENS:
            del steps[place]
        if not any(step.name == "shuffle" for step in steps):
            steps.insert(len(steps) if place is None or steps[-1].name != TOKENS else -1, Step("shuffle"))
        if not steps or steps[-1].name != TOKENS:
            steps.append(Step(TOKENS, {"sequence_length": SEQUENCE_LENGTH}))
        from tamis.text.token_ids import end_token_of

        given = {"tokenizer": str(tokenizer), **steps[-1].parameters}
        end = end_token_of(tokenizer)
        found = {"end_token": end} if end is not None and "end_token" not in given else {}
        source = {"source": "source"} if steps[0].name == MIX and "source" not in given else {}
        steps[-1] = replace(steps[-1], parameters={**given, "tokenizer": str(tokenizer), **found, **source})
        return replace(self, steps=tuple(steps))

    def located_in(self, folder: Path) -> Recipe:
        """The recipe with its relative paths taken from `folder`."""
        steps = []
        for step in self.steps:
            cls = find_operator(step.name)
            paths = {
                name: located_sources(value, folder)
                if isinstance(value, Mapping)
                else located(value, folder, is_file=issubclass(cls, (Source, Sink)))
                for name, value in step.parameters.items()
                if name in cls.path_parameters
            }
            steps.append(replace(step, parameters={**step.parameters, **paths}))
        return replace(self, steps=tuple(steps))

    def with_overrides(self, overrides: Sequence[str]) -> Recipe:
        """Set parameters by text: "word_count.min_words=3", "2.min_words=3" (second step) or
        "word_count#2.min_words=3" (second step of that name). Values are YAML.
        """
        steps = list(self.steps)
        for text in overrides:
            target, equals, value = text.partition("=")
            step, dot, parameter = target.strip().partition(".")
            if not (equals and dot and step and parameter):
                raise RecipeError(f"cannot understand {text!r}", hint="write step.parameter=value")
            place = self.locate(step, text)
            parameters = {**steps[place].parameters, parameter: read_value(value)}
            keys = {key: position for key, position in steps[place].keys.items() if key != parameter}
            steps[place] = replace(steps[place], parameters=parameters, keys=keys, optional=False)
        result = replace(self, steps=tuple(steps))
        result.check_names()
        return result

    def rethresholded(self, overrides: Sequence[str]) -> Recipe:
        """With other thresholds, and nothing else changed: raise if a parameter is one that decides what is measured."""
        result = self.with_overrides(overrides)
        for before, after in zip(self.steps, result.steps, strict=True):
            cls = find_operator(after.name)
            for name in set(before.parameters) | set(after.parameters):
                unchanged = before.parameters.get(name) == after.parameters.get(name)
                if not unchanged and not (issubclass(cls, Filter) and cls.is_threshold(name)):
                    raise RecipeError(
                        f"`{name}` of `{after.name}` is not a threshold: another value changes what is measured",
                        hint="use `tamis run`, which repeats what is affected",
                    )
        return result

    def check_names(self) -> None:
        """Raise if a step or one of its parameters is unknown."""
        for place, step in enumerate(self.steps):
            with self._within(place):
                known = [spec.name for spec in dataclasses.fields(find_operator(step.name))]
                for key in step.parameters:
                    if key not in known:
                        hint = parameter_hint(key, known)
                        raise ParameterError(f"`{step.name}` has no parameter `{key}`", hint=hint)

    def check_ends(self) -> None:
        """Raise unless the recipe says where rows come from and where they go."""
        title = f"the recipe `{self.name}`" if self.name else "the recipe"
        if self._find("source") is None:
            raise RecipeError(
                f"{title} names no input", hint="add --input PATH, or begin it with `- jsonl_reader: {file_paths: ...}`"
            )
        if self._find("sink") is None:
            raise RecipeError(
                f"{title} names no output", hint="add --output FOLDER, or end it with `- parquet_writer: {path: ...}`"
            )

    def operator_classes(self) -> list[type[Operator]]:
        return [find_operator(step.name) for step in self.steps]

    def operators(self) -> list[Operator]:
        """The steps as operators, their parameters checked."""
        result = []
        for place, step in enumerate(self.steps):
            with self._within(place):
                result.append(build_operator(step.name, _fitted(find_operator(step.name), step.parameters)))
        return result

    def available(self) -> tuple[Recipe, tuple[str, ...]]:
        """The recipe without optional steps that cannot run on this machine, and why each was left out."""
        kept, notes, lost = [], [], dict[str, str]()
        for place, step in enumerate(self.steps):
            if step.optional:
                with self._within(place):
                    made = build_operator(step.name, _fitted(find_operator(step.name), step.parameters))
                    reason = _why_left_out(made, lost)
                if reason is not None:
                    notes.append(f"step {place + 1} of the recipe, `{step.name}`, is left out: {reason}")
                    lost |= dict.fromkeys(set(made.writes()) - set(made.real_names().values()), step.name)
                    continue
            kept.append(step)
        return replace(self, steps=tuple(kept)), tuple(notes)

    def build(self) -> Pipeline:
        """The pipeline of the steps that are available, checked as far as that goes without looking at data."""
        from tamis.pipeline import Pipeline

        found, notes = self.available()
        made = Pipeline(found.operators())
        made.notes = notes
        return made

    def to_yaml(self) -> str:
        """The recipe as a file that `load_recipe` reads back."""
        top: dict[str, Any] = {}
        for key, value in [("name", self.name), ("description", self.description)]:
            if value:
                top[key] = value
        top |= {key: getattr(self.settings, key) for key in _SETTINGS if getattr(self.settings, key) is not None}
        return write_document(top, [(step.name, step.parameters, step.optional) for step in self.steps])

    # ------------------------------------------------------------------------------------------------ finding steps

    def _find(self, kind: str) -> int | None:
        for place, step in enumerate(self.steps):
            with self._within(place):
                if find_operator(step.name).kind == kind:
                    return place
        return None

    def _pair(self, place: int | None) -> tuple[str, Mapping[str, Any]] | None:
        return (self.steps[place].name, self.steps[place].parameters) if place is not None else None

    def _pairs(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [(step.name, step.parameters) for step in self.steps]

    def locate(self, step: str, text: str | None = None) -> int:
        """The place of a step given by name, name#2 or number; errors quote `text`."""
        text = step if text is None else text
        names = [each.name for each in self.steps]
        listing = ", ".join(f"{number} {name}" for number, name in enumerate(names, 1))
        if step.isdecimal():
            if not 1 <= int(step) <= len(names):
                raise RecipeError(f"{text!r}: there is no step {step}", hint=f"the steps are {listing}")
            return int(step) - 1
        name, _, occurrence = step.partition("#")
        places = [place for place, each in enumerate(names) if each == name]
        if not places:
            near = did_you_mean(name, names)
            hint = f"{near} the steps are {listing}" if near else f"the steps are {listing}"
            raise RecipeError(f"{text!r}: there is no step `{name}`", hint=hint)
        if occurrence:
            if not occurrence.isdecimal() or not 1 <= int(occurrence) <= len(places):
                raise RecipeError(f"{text!r}: `{name}` occurs {len(places)} times", hint=f"the steps are {listing}")
            return places[int(occurrence) - 1]
        if len(places) > 1:
            choices = " or ".join(f"{name}#{number}" for number in range(1, len(places) + 1))
            raise RecipeError(f"{text!r}: `{name}` occurs {len(places)} times", hint=f"say which: {choices}")
        return places[0]

    @contextmanager
    def _within(self, place: int) -> Iterator[None]:
        """Errors raised inside say which step they are about, and where it is."""
        step = self.steps[place]
        try:
            yield
        except TamisError as error:
            position = step.position_of(error) if self.where else None
            start = f"{self.where}, {position}: " if position is not None else ""
            message = f"{start}step {place + 1}, `{step.name}`: {error.message}"
            raise type(error)(message, hint=error.hint) from error


# ------------------------------------------------------------------------------------------------- reading and finding


def load_recipe(name_or_path: str | Path) -> Recipe:
    """A recipe from a file, or one that ships with the package, by name."""
    text = str(name_or_path)
    looks_like_path = isinstance(name_or_path, Path) or "/" in text or text.endswith((".yaml", ".yml"))
    # os.path says no where pathlib raises, e.g. for a name that is too long; a pipe, `<(...)`, is as good as a file.
    if os.path.exists(text) and not os.path.isdir(text):  # noqa: PTH110, PTH112
        recipe = parse_recipe(_read(Path(text)), text)
        recipe.check_names()
        if os.path.isfile(text):  # noqa: PTH113 - a pipe has no folder
            recipe = recipe.located_in(Path(text).parent)
    elif looks_like_path:
        what = "is a folder" if os.path.isdir(text) else "does not exist"  # noqa: PTH112
        raise RecipeError(f"the recipe {text} {what}", hint="name a YAML file, or a recipe of `tamis recipes`")
    else:
        recipe = find_shipped(text)
    recipe.check_names()
    return recipe


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {path}: {error.strerror}") from error


def parse_recipe(data: bytes, where: str) -> Recipe:
    """A recipe from the bytes of a file; `where` names it in messages. Operators are looked up later."""
    root = read_document(data, where)
    document = root.values
    for key in document:
        if key not in _KEYS:
            hint = did_you_mean(key, _KEYS) or f"a recipe has {', '.join(_KEYS)}"
            raise RecipeError(f"{where}, {root.keys[key]}: unknown key `{key}`", hint=hint)
    for key in ("name", "description"):
        if key in document and not isinstance(document[key].value, str):
            entry = document[key]
            raise RecipeError(f"{where}, {entry.position}: `{key}` must be text, got {entry.value!r}")
    if "steps" not in document:
        raise RecipeError(f"{where} has no `steps`", hint="steps: is a list of operators; `tamis ops` lists them")
    steps = document["steps"]
    if not isinstance(steps.value, list) or not steps.value:
        raise RecipeError(
            f"{where}, {steps.position}: `steps` must be a list of operators, got {steps.value!r}",
            hint="write each step on a line of its own: - word_count: {min_words: 3}",
        )
    values = {key: document[key].value for key in _SETTINGS if key in document}
    try:
        settings = Settings(**values)
    except ParameterError as error:
        at = [document[key].position for key in values if f"`{key}`" in error.message]
        position = at[0] if at else document["memory" if "memory" in document else "gpu_memory"].position
        raise ParameterError(f"{where}, {position}: {error.message}", hint=error.hint) from error
    return Recipe(
        steps=tuple(_parse_step(number, entry, where) for number, entry in enumerate(steps.items, 1)),
        name=document["name"].value if "name" in document else Path(where).stem,
        description=document["description"].value if "description" in document else "",
        settings=settings,
        where=where,
    )


def _why_left_out(step: Operator, lost: Mapping[str, str]) -> str | None:
    """Why an optional step cannot run; None if it can. `lost` has the columns that steps before would have written."""
    from tamis.plan import check_packages

    for column in step.real_names().values():
        if column in lost:
            return f"it reads `{column}`, which `{lost[column]}` would have written"
    try:
        step.check()
        check_packages(step)
    except (MissingExtra, ModelError) as error:
        return f"{error.message}; {error.hint}" if error.hint else error.message
    return None


def _parse_step(number: int, entry: Entry, where: str) -> Step:
    place, value = f"{where}, {entry.position}: step {number}", entry.value
    optional = False
    if isinstance(value, dict) and len(value) > 1 and "optional" in value:
        value = dict(value)
        optional = value.pop("optional")
        if not isinstance(optional, bool):
            raise RecipeError(f"{place}: `optional` must be true or false, got {optional!r}")
    if isinstance(value, str):
        return Step(value, {}, entry.position)
    example = "- word_count: {min_words: 3}"
    if not isinstance(value, dict) or not value:
        raise RecipeError(f"{place} must be an operator, got {value!r}", hint=f"write {example}")
    name, parameters = next(iter(value.items()))
    if len(value) > 1:
        others = ", ".join(f"`{key}`" for key in list(value)[1:])
        hint = f"indent {others} below `{name}`, or begin each operator with its own dash: {example}"
        raise RecipeError(f"{place} names more than one operator: `{name}`, {others}", hint=hint)
    if not isinstance(name, str):
        raise RecipeError(f"{place} must be the name of an operator, got {name!r}", hint=f"write {example}")
    if parameters is None:
        return Step(name, {}, entry.position, optional=optional)
    given = entry.values[name]
    if not isinstance(parameters, dict) or not all(isinstance(key, str) for key in parameters):
        place, hint = f"{where}, {given.position}: step {number}", f"write {example}"
        raise RecipeError(f"{place}, `{name}`: parameters must be names with values, got {parameters!r}", hint=hint)
    positions = {key: each.position for key, each in given.values.items()}
    return Step(name, parameters, entry.position, given.keys, positions, optional)


def shipped_names() -> list[str]:
    """The names of the recipes in the package."""
    files = resources.files("tamis.recipes").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def shipped_text(name: str) -> str:
    return resources.files("tamis.recipes").joinpath(f"{name}.yaml").read_text("utf-8")


def find_shipped(name: str) -> Recipe:
    """The recipe of the package that is called `name`, or an error with the nearest name."""
    known = shipped_names()
    if name not in known:
        hint = did_you_mean(name, known) or f"name a YAML file, or one of {', '.join(known)}"
        raise RecipeError(f"there is no recipe `{name}`", hint=hint)
    return parse_recipe(shipped_text(name).encode(), f"{name}.yaml")


def shipped() -> dict[str, Recipe]:
    """The recipes in the package, by name."""
    return {name: find_shipped(name) for name in shipped_names()}


def recorded(output: str | Path) -> Recipe:
    """The recipe of the run that wrote `output`, from its manifest."""
    steps = load_manifest(output)["recipe"]["steps"]
    return Recipe(tuple(Step(name, dict(given)) for step in steps for name, given in step.items()))


def recipe_of(pipeline: Pipeline, *, name: str = "", description: str = "") -> Recipe:
    """The recipe that builds `pipeline`. Functions and objects in memory cannot be written down."""
    steps = []
    for number, step in enumerate(pipeline.steps, 1):
        if isinstance(step, Function):
            raise RecipeError(
                f"step {number} is the function `{step.name}`, which a recipe cannot hold",
                hint="make it an operator: a class with @operator, announced as an entry point of `tamis.operators`",
            )
        if registered().get(step.name) is not type(step):
            raise RecipeError(
                f"step {number}, `{step.name}`, is not a registered operator", hint="decorate its class with @operator"
            )
        for spec in dataclasses.fields(step):
            value = getattr(step, spec.name)
            if not _is_plain(value):
                kind = type(value).__name__
                raise RecipeError(f"step {number}, `{step.name}`: a recipe cannot hold a {kind} as `{spec.name}`")
        steps.append(Step(step.name, step.parameters()))
    return Recipe(tuple(steps), name, description)


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    if isinstance(value, Source):  # a source of a mix: its parameters are those of a step
        return all(_is_plain(getattr(value, spec.name)) for spec in dataclasses.fields(value))
    return value is None or isinstance(value, (bool, int, float, str, Path))


def _fitted(cls: type[Operator], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with lists as tuples and text as paths where the operator takes only those: YAML has neither."""
    hints = typing.get_type_hints(cls)
    result = dict(parameters)
    for key, value in parameters.items():
        if key in hints and not fits(value, hints[key]):
            changed = Path(value) if isinstance(value, str) else _tuples(value)
            if fits(changed, hints[key]):
                result[key] = changed
    return result


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
