"""`json_schema`: validate that a response is JSON and matches a JSON schema.

Runs isolated: a client's schema may contain patterns for Python's `re`, and references that recurse without end.
"""

import json
import re
from typing import Any, Literal

from jsonschema import FormatChecker
from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft202012Validator, validator_for
from jsonschema_specifications import REGISTRY
from pydantic import Field, JsonValue, field_validator
from referencing.exceptions import Unresolvable

from tasks.errors import CannotJudge
from tasks.scoring.scorer import LimitedOptions, Sample, scorer

#: Maximum characters of a schema: its check takes more than linear time.
MOST_SCHEMA = 100_000
_PATTERNS = FormatChecker(["regex"])
_FENCE = re.compile(r"^[ \t]*```[a-zA-Z0-9]*[ \t]*$", re.MULTILINE)


class JsonSchema(LimitedOptions):
    """1 when the response is JSON that the schema allows; 0 when it is not JSON, or not allowed.

    Supports drafts 3 to 2020-12, selected by the schema's `$schema`; ignores `format`, and fetches no remote schemas.
    """

    schema_: dict[str, JsonValue] | bool = Field(alias="schema", description="The schema.")
    find: Literal["whole", "fenced"] = Field(
        "fenced",
        description="Text to parse: `fenced`, the last Markdown code block, or the whole text without a code block; "
        "`whole`, always the whole text.",
    )

    @field_validator("schema_")
    @classmethod
    def _is_schema(cls, value: Any) -> Any:
        if len(json.dumps(value)) > MOST_SCHEMA:
            raise ValueError(f"is longer than {MOST_SCHEMA:,} characters: shorten it")
        try:
            validator_for(value, default=Draft202012Validator).check_schema(value, _PATTERNS)  # type: ignore[call-arg]  # the stubs lack it
        except SchemaError as error:
            path = "".join(f"[{part!r}]" for part in error.absolute_path)
            raise ValueError(f"is not a JSON schema: {error.message[:300]}{f' at {path}' if path else ''}") from error
        except (RecursionError, OverflowError) as error:
            raise ValueError("is too deeply nested, or contains a pattern that repeats too much") from error
        return value


@scorer("json_schema", JsonSchema, isolated=True, cost_s=0.0005)
def json_schema(sample: Sample, options: JsonSchema) -> float:
    try:
        value = json.loads(_found(sample.text, options), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return 0.0
    # The registry contains only the schemas of the drafts: a client's schema must not trigger a fetch of a URL.
    validator = validator_for(options.schema_, default=Draft202012Validator)(options.schema_, registry=REGISTRY)
    try:
        return float(validator.is_valid(value))
    except Unresolvable as error:
        raise CannotJudge("schema_unusable", f"The schema has a reference that does not resolve: {error}") from error
    except RecursionError:
        raise CannotJudge("schema_unusable", "The schema refers to itself without end: remove the cycle.") from None
    except re.error as error:
        raise CannotJudge("schema_unusable", f"The schema contains an invalid pattern: {error}") from error


def _found(text: str, options: JsonSchema) -> str:
    if options.find == "whole":
        return text
    fences = [(match.start(), match.end()) for match in _FENCE.finditer(text)]
    return text[fences[-2][1] : fences[-1][0]] if len(fences) > 1 else text


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
