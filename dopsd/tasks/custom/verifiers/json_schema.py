"""Verifier `json_schema`: JSON that fits a schema, and equals the row's answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.errors import Code
from dopsd.core.extras import require
from dopsd.core.types import Problem
from dopsd.tasks.common.formats import search
from dopsd.tasks.common.json_files import unambiguous

if TYPE_CHECKING:
    from dopsd.tasks.custom.verifiers.config import JsonSchemaConfig


def parse(text: str, fraction: Callable[[str], object] = float) -> tuple[bool, Any]:
    """Return whether a text is JSON without NaN and keys that occur twice, and its value.

    Args:
        fraction: makes a value of a number with a point or an exponent.
    """

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    try:
        hooks: dict[str, Any] = {"parse_constant": refuse, "object_pairs_hook": unambiguous}
        return True, json.loads(text, parse_float=fraction, **hooks)
    except (ValueError, RecursionError, DecimalException):
        return False, None


def _is_same(left: object, right: object) -> bool:
    """Return whether JSON values are equal, numbers without rounding: 1.0 is 1, true is not."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_is_same(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_is_same, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def patterns_in_time(validator: Any, pattern: str, instance: Any, _: Any) -> Iterator[Any]:  # noqa: ANN401  # types of jsonschema
    """Check keyword `pattern` with a time limit, in place of jsonschema's own."""
    from jsonschema import ValidationError

    if validator.is_type(instance, "string") and not search(pattern, instance):
        yield ValidationError(f"does not match {pattern}")


class JsonSchema:
    """Right if the answer is JSON that fits the schema and, where asked, equals the row's."""

    def __init__(self, key: str, config: JsonSchemaConfig) -> None:
        self.key, self.is_compared = f"{key}.schema_file", config.equals_answer
        require(key, "jsonschema")
        self.validator = _validator(self.key, config.schema_file)

    def fits(self, answer: str) -> bool:
        """Return whether a text is JSON that fits the schema."""
        is_json, value = parse(answer)
        try:
            return is_json and (self.validator is None or bool(self.validator.is_valid(value)))
        except RecursionError:
            return False

    def fault(self, answer: str) -> str | None:
        """Require JSON that fits the schema, where answers are compared with it."""
        is_sound = not self.is_compared or self.fits(answer)
        return None if is_sound else "JSON that fits the schema"

    def score(self, problem: Problem, answer: str) -> float:
        """Return 1 for an answer that fits, else 0."""
        is_fit = self.fits(answer)
        if not is_fit or not self.is_compared:
            return float(is_fit)
        (is_sound, value), (_, gold) = parse(answer, Decimal), parse(problem.answer, Decimal)
        try:
            return float(is_sound and _is_same(value, gold))
        except RecursionError:
            return 0.0


def _validator(key: str, path: str | None) -> Any:  # noqa: ANN401  # types of jsonschema
    """Return a validator of the schema in a file; it reads no other file and asks no network."""
    if path is None:
        return None
    from jsonschema import SchemaError, validators
    from referencing import Registry

    try:
        schema = json.loads(Path(path).read_text(encoding="utf-8-sig"))
        kind = validators.validator_for(schema, default=validators.Draft202012Validator)
        kind.check_schema(schema)
    except OSError as error:
        raise Code.NAMED_FILE_MISSING.error(
            f"{key}: {path}: {error.strerror}; expected a JSON schema"
        ) from error
    except (ValueError, RecursionError, SchemaError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise Code.SOURCE_FORMAT.error(
            f"{key}: {path}: not a JSON schema ({reason}); fix the file"
        ) from error
    _check_parts(f"{key}: {path}", schema, kind.META_SCHEMA["$schema"])
    checked = validators.extend(kind, {"pattern": patterns_in_time})
    return checked(schema, registry=Registry())


def _check_parts(place: str, schema: Any, dialect: str) -> None:  # noqa: ANN401  # any JSON
    """Refuse references that lead nowhere, and patterns that jsonschema searches without a limit.

    Args:
        dialect: address of its version of JSON schema.
    """
    from referencing import Registry, jsonschema
    from referencing.exceptions import Unresolvable

    version = jsonschema.specification_with(dialect)
    root, seen = version.create_resource(schema), set()
    parts = [(Registry().resolver_with_root(root), root)]
    for resolver, part in parts:  # grows
        keywords = part.contents
        if id(keywords) in seen or not isinstance(keywords, dict):
            continue
        seen.add(id(keywords))
        if "patternProperties" in keywords:
            raise Code.SOURCE_FORMAT.error(
                f"{place}: patternProperties has no time limit; use propertyNames with a pattern"
            )
        try:
            for name in {"$ref", "$dynamicRef", "$recursiveRef"} & keywords.keys():
                target = resolver.lookup(str(keywords[name]))
                parts.append((target.resolver, version.create_resource(target.contents)))
        except Unresolvable as error:
            raise Code.SOURCE_FORMAT.error(
                f"{place}: {error.ref}: no such part; a schema may refer only to its own parts"
            ) from error
        parts += [(resolver.in_subresource(child), child) for child in part.subresources()]
