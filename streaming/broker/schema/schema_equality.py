"""When two definitions in Avro are one (mirrors `Schema.equals` of Avro 1.11)."""

from typing import Any

_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_RESERVED = ("doc", "aliases", "type", "name", "namespace", "fields", "symbols", "size", "items", "values")
_RESERVED_OF_FIELD = ("doc", "aliases", "type", "name", "order", "default")
_PARTS = {"array": "items", "map": "values"}

_Name = tuple[str, str]
"""The namespace and the name of a type. All types of a namespace share its text."""


def essence(definition: Any) -> Any:
    """What must be equal in two definitions: all but comments, aliases, an enum's default, and how names and types are written. Of what is
    not in Avro, all."""
    return _Essence().of(definition, "")


class _Essence:
    def __init__(self) -> None:
        self._named: dict[_Name, _Name] = {}

    def of(self, schema: Any, namespace: str) -> Any:
        """The essence of a type inside a namespace."""
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVES else self._reference(schema, namespace) or schema
        if isinstance(schema, list):
            return [self.of(branch, namespace) for branch in schema]
        if not isinstance(schema, dict):
            return schema
        type_ = schema.get("type")
        found = {name: value for name, value in schema.items() if name not in _RESERVED}
        if type_ in _PRIMITIVES:
            return found | {"type": type_} if found else type_
        match type_:
            case "array" | "map":
                return found | {"type": type_, "of": self.of(schema.get(_PARTS[type_]), namespace)}
            case "fixed":
                return found | {
                    "type": type_,
                    "name": self._define(schema, namespace),
                    "size": schema.get("size"),
                }
            case "enum":
                found.pop("default", None)
                return found | {
                    "type": type_,
                    "name": self._define(schema, namespace),
                    "symbols": schema.get("symbols"),
                }
            case "record" | "error" if isinstance(fields := schema.get("fields"), list):
                name = self._define(schema, namespace)
                return found | {
                    "type": "record",
                    "name": name,
                    "fields": [self._field(each, name[0]) for each in fields],
                }
        return (isinstance(type_, str) and self._reference(type_, namespace)) or schema

    def _field(self, field: Any, namespace: str) -> Any:
        if not isinstance(field, dict):
            return field
        found = {name: value for name, value in field.items() if name not in _RESERVED_OF_FIELD}
        if "default" in field:
            found["default"] = field["default"]
        order = str(field.get("order") or "ascending").lower()
        return found | {
            "name": field.get("name"),
            "type": self.of(field.get("type"), namespace),
            "order": order,
        }

    def _define(self, schema: dict[str, Any], namespace: str) -> _Name:
        own = schema.get("namespace")
        name = _name(str(schema.get("name")), own if isinstance(own, str) else namespace)
        return self._named.setdefault(name, name)

    def _reference(self, name: str, namespace: str) -> _Name | None:
        return self._named.get(_name(name, namespace)) or self._named.get(_name(name, ""))


def _name(name: str, namespace: str) -> _Name:
    space, _, simple = name.rpartition(".")
    return space or namespace, simple
