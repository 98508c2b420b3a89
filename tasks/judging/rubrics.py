"""Rubrics: the criteria of a judge, as sandboxed Jinja templates in a folder. `name.j2` is the rubric `name`.

A template opens with a comment that holds its version and its modes. It renders criteria only: `prompts.py` adds the
texts under judgement and fences them, so that no author of a rubric can forget the fence.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast, get_args

from jinja2 import StrictUndefined, Template, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tasks.errors import InvalidRequest
from tasks.judging.fence import Fence
from tasks.judging.model import Mode

BUILT_IN = Path(__file__).parent / "rubrics"
MODES = cast(tuple[Mode, ...], get_args(Mode))
#: Variables that a template may use.
VARIABLES = ("mode", "low", "high", "has_prompt", "has_reference", "metadata")

_NAME = re.compile(r"[a-z0-9_-]{1,60}")
_HEADER = re.compile(
    r"\s*\{#-?\s*version:\s*(?P<version>[A-Za-z0-9._-]{1,30})\s*(?:;\s*modes:\s*(?P<modes>[a-z_, ]+?)\s*)?-?#\}"
)
_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True
)


class RubricError(Exception):
    """The template of a rubric is invalid, or cannot be rendered for an item: correct the rubric's file."""


@dataclass(frozen=True, slots=True)
class Rubric:
    name: str
    version: str
    hash: str
    """Hash of the template's text, part of the cache key: an edit without a new version still misses the cache."""
    modes: tuple[Mode, ...]
    template: Template = field(repr=False, compare=False)

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}"

    def render(self, fence: Fence, metadata: Mapping[str, Any], **values: object) -> str:
        """Render the criteria. Raises RubricError when the template needs metadata that this item lacks."""
        shown = {name: _FencedValue(fence, name, value) for name, value in metadata.items()}
        try:
            text = self.template.render(**values, metadata=shown).strip()
        except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise RubricError(f"rubric {self.label}: {error}") from error
        rest = text
        for each in shown.values():
            rest = rest.replace(str(each), "")
        if fence.code in rest.lower():
            raise RubricError(f"rubric {self.label}: a filter broke the fence of metadata: use metadata unfiltered")
        return text


class _FencedValue:
    """A value of an item's metadata for templates: its truth can be tested, and its text is always fenced."""

    def __init__(self, fence: Fence, name: str, value: object) -> None:
        self._value = value
        self._text = fence.wrap(f"METADATA {re.sub('[^A-Z ]', ' ', name.upper())[:30]}".strip(), str(value))

    def __bool__(self) -> bool:
        return bool(self._value)

    def __str__(self) -> str:
        return self._text


class Rubrics:
    """The rubrics of this installation: Assay's own and the files of a folder; the folder takes precedence."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folders = [*([folder] if folder else []), BUILT_IN]

    def names(self) -> list[str]:
        return sorted({path.stem for folder in self._folders for path in folder.glob("*.j2")})

    def find(self, label: str) -> Rubric:
        """Return the rubric `name` or `name@version`. Raises InvalidRequest when it is missing or invalid."""
        name, _, version = label.partition("@")
        path = next((path for folder in self._folders if (path := folder / f"{name}.j2").is_file()), None)
        if path is None or not _NAME.fullmatch(name):
            known = ", ".join(self.names())
            raise InvalidRequest(f"spec.rubric: unknown rubric {name!r}: use {known}", field="spec.rubric")
        try:
            stat = path.stat()
            rubric = _load(path, stat.st_mtime_ns, stat.st_size)
        except (RubricError, OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"spec.rubric: {path.name} is invalid: {error}", field="spec.rubric") from error
        if version and version != rubric.version:
            raise InvalidRequest(
                f"spec.rubric: the server has {name!r} in version {rubric.version}: ask for {rubric.label!r}",
                field="spec.rubric",
            )
        return rubric

    def find_for(self, label: str, mode: Mode) -> Rubric:
        """Return the rubric like `find`. Raises InvalidRequest also when the rubric does not support the mode."""
        rubric = self.find(label)
        if mode not in rubric.modes:
            modes = ", ".join(rubric.modes)
            raise InvalidRequest(
                f"spec.rubric: {rubric.name!r} supports {modes}, not {mode}: choose another rubric or mode",
                field="spec.rubric",
            )
        return rubric


@lru_cache(maxsize=256)
def _load(path: Path, changed_ns: int, size: int) -> Rubric:  # noqa: ARG001  # a changed file misses the cache
    text = path.read_text(encoding="utf-8")
    if not (header := _HEADER.match(text)):
        raise RubricError("the first line must be a comment like {# version: 1; modes: scale, reference #}")
    modes = tuple(each.strip() for each in (header["modes"] or ", ".join(MODES)).split(","))
    if unknown := set(modes) - set(MODES):
        raise RubricError(f"unknown mode {sorted(unknown)[0]!r}: use {', '.join(MODES)}")
    try:
        tree = _ENVIRONMENT.parse(text)
        template = _ENVIRONMENT.from_string(text)
    except TemplateError as error:
        raise RubricError(str(error)) from error
    if unknown := meta.find_undeclared_variables(tree) - set(VARIABLES) - set(_ENVIRONMENT.globals):
        raise RubricError(f"unknown variable {sorted(unknown)[0]!r}: a rubric may use {', '.join(VARIABLES)}")
    if list(meta.find_referenced_templates(tree)):
        raise RubricError("includes are not allowed, as changes of the included file would go unnoticed: use one file")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Rubric(path.stem, header["version"], digest, cast(tuple[Mode, ...], modes), template)
