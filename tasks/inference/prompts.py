"""Prompt rendering: converts a row to the chat messages that a model receives."""

from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tasks.errors import CannotAnswer, InvalidRequest
from tasks.inference.model import InferenceItem, InferenceSpec

#: Default template of a job.
DEFAULT = """\
{% if context %}
Answer the question with the help of this documentation.

{{ context }}

Question: {{ query }}
{%- else %}
{{ query }}
{%- endif %}"""

_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True
)


def check_template(spec: InferenceSpec) -> None:
    """Raise InvalidRequest when the spec's template is invalid Jinja."""
    try:
        _template(spec.template or DEFAULT)
    except TemplateError as error:
        raise InvalidRequest(f"spec.template: {error}", field="spec.template") from error


def messages_of(spec: InferenceSpec, item: InferenceItem) -> list[dict[str, Any]]:
    """Render the row as chat messages. Raises CannotAnswer when the template needs a field that the row lacks."""
    system = [{"role": "system", "content": spec.system}] if spec.system else []
    row = item.model_dump(mode="json", exclude={"answered_as"}) | (item.answered_as or {})
    if messages := row.get("messages"):
        given = messages if isinstance(messages, list) else [{"role": "user", "content": messages}]
        return [*system, *given]
    return [*system, {"role": "user", "content": _rendered(spec, row)}]


def _rendered(spec: InferenceSpec, row: dict[str, Any]) -> str:
    try:
        return _template(spec.template or DEFAULT).render(row)
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        raise CannotAnswer("template_unusable", f"The template cannot be rendered with this row: {error}") from error


@lru_cache(maxsize=64)
def _template(text: str) -> Template:
    return _ENVIRONMENT.from_string(text)
