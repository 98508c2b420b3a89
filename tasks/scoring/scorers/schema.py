"""`json_schema`: whether a response is JSON of a given shape.

Runs isolated: a client's schema may hold patterns for Python's own `re`, and references that branch without end.
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

#: Characters of a schema: checking one takes more than linear time.
MOST_SCHEMA = 100_000
_PATTERNS = FormatChecker(["regex"])
_FENCE = re.compile(r"^[ \t]*```[a-zA-Z0-9]*[ \t]*$", re.MULTILINE)


class JsonSchema(LimitedOptions):
    """1 when the response is JSON that the schema allows; 0 when it is not JSON, or not allowed.

    Drafts 3 to 2020-12, by the schema's `$schema`; `format` is not checked, and nothing is fetched.
    """

    schema_: dict[str, JsonValue] | bool = Field(alias="schema", description="The schema.")
    find: Literal["whole", "fenced"] = Field(
        "fenced",
        description="`fenced`: what the last Markdown code fence holds, or all of the text without one; `whole`: all.",
    )

    @field_validator("schema_")
    @classmethod
    def _is_schema(cls, value: Any) -> Any:
        if len(json.dumps(value)) > MOST_SCHEMA:
            raise ValueError(f"is longer than {MOST_SCHEMA:,} characters")
        try:
            validator_for(value, default=Draft202012Validator).check_schema(value, _PATTERNS)  # type: ignore[call-arg]  # the stubs lack it
        except SchemaError as error:
            path = "".join(f"[{part!r}]" for part in error.absolute_path)
            raise ValueError(f"is not a JSON schema: {error.message[:300]}{f' at {path}' if path else ''}") from error
        except (RecursionError, OverflowError) as error:
            raise ValueError("is too deeply nested, or holds a pattern that repeats too much") from error
        return value


@scorer("json_schema", JsonSchema, isolated=True, cost_s=0.0005)
def json_schema(sample: Sample, options: JsonSchema) -> float:
    try:
        value = json.loads(_found(sample.text, options), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return 0.0
    # The registry knows the drafts' own schemas and nothing else: a client's schema must not make us fetch a URL.
    validator = validator_for(options.schema_, default=Draft202012Validator)(options.schema_, registry=REGISTRY)
    try:
        return float(validator.is_valid(value))
    except Unresolvable as error:
        raise CannotJudge("schema_unusable", f"The schema refers to what it does not hold: {error}") from error
    except RecursionError:
        raise CannotJudge("schema_unusable", "The schema refers to itself without end.") from None
    except re.error as error:
        raise CannotJudge("schema_unusable", f"The schema holds a pattern that is none: {error}") from error


def _found(text: str, options: JsonSchema) -> str:
    if options.find == "whole":
        return text
    fences = [(match.start(), match.end()) for match in _FENCE.finditer(text)]
    return text[fences[-2][1] : fences[-1][0]] if len(fences) > 1 else text


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
