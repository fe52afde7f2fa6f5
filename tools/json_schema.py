"""The JSON Schemas: ``schemas/command.schema.json`` of a record in JSON Lines, which is a command and its coordinates, and
``schemas/policies.schema.json`` of a file of policies."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from schemas import commands as c
from schemas.records import RECORD
from streaming.broker.admin import namespace_policies
from streaming.broker.config import PROFILE_OF, WITHOUT_EFFECT, ServiceConfiguration
from streaming.broker.policies import topic_policies
from streaming.broker.policies.admin_calls import OTHER_FIELDS
from streaming.broker.policies.hierarchy import Policies
from streaming.log.policy_files import POLICIES
from tools.descriptions import fields

COORDINATES: dict[str, dict[str, Any]] = {
    "partition": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "offset": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    "timestamp": {"type": "integer", "minimum": 0, "maximum": 10**14},
    "topic": {"type": ["string", "null"]},
}


def command_schema() -> dict[str, Any]:
    """The schema, in draft 2020-12. A record's ``command`` chooses what else is allowed in it, so that an error names the
    field and not all the commands that the record isn't."""
    forms = [c.Publish, *get_args(c.AnyCommand)]
    _, definitions = msgspec.json.schema_components(forms, ref_template="#/$defs/{name}")
    for name, definition in definitions.items():
        for field in fields(getattr(c, name)):
            if field.type == "any JSON":
                definition["properties"][field.name] = {"default": None}
            text = f"{field.description} Unit: {field.unit}." if field.unit else field.description
            definition["properties"][field.name] = {
                "description": text,
                **definition["properties"][field.name],
            }
        if "description" in definition:
            definition["description"] = " ".join(definition["description"].replace("``", "`").split())
        if "payload_bytes" in definition["properties"]:
            given = {field: {"minLength": 1} for field in ("payload", "payload_bytes")}
            definition["not"] = {"required": [*given], "properties": given}
    coordinates = {
        name: {"description": RECORD.field(name).metadata[b"doc"].decode(), **schema}
        for name, schema in COORDINATES.items()
    }
    for form in forms:
        properties = definitions[form.__name__]["properties"]
        definitions[form.__name__]["properties"] = coordinates | properties
    tags = {form.__struct_config__.tag: f"#/$defs/{form.__name__}" for form in forms[1:]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Magnetar command record",
        "description": "One line of a command log: a command, or the short form of publishing, and its coordinates.",
        "type": "object",
        "properties": {
            "command": {"enum": [*tags], "description": "The command's name. Absent: the short form."}
        },
        "allOf": [
            *(
                {
                    "if": {"properties": {"command": {"const": tag}}, "required": ["command"]},
                    "then": {"$ref": reference},
                }
                for tag, reference in tags.items()
            ),
            {"if": {"not": {"required": ["command"]}}, "then": {"$ref": "#/$defs/Publish"}},
        ],
        "$defs": definitions,
    }


def policies_schema() -> dict[str, Any]:
    """The schema of a file of policies, in draft 2020-12."""
    _, definitions = msgspec.json.schema_components(
        [Policies, ServiceConfiguration], ref_template="#/$defs/{name}"
    )
    for struct in (Policies, ServiceConfiguration):
        definition = definitions[struct.__name__]
        definition.pop("description", None)
        definition.pop("required", None)
        for field in fields(struct):
            text = f"{field.description} Unit: {field.unit}." if field.unit else field.description
            definition["properties"][field.name] = {
                "description": text,
                **definition["properties"][field.name],
            }
    for definition in definitions.values():
        if "properties" in definition:
            definition["additionalProperties"] = False  # a misspelled field would have no effect
    for struct, others in OTHER_FIELDS.items():
        definitions[struct.__name__]["properties"] |= {
            name: {"description": text} for name, text in others.items()
        }
    of_policies = definitions["Policies"]["properties"]
    for name in ("backlogQuota", "subscriptionDispatchRates"):  # null removes one of them, or all
        each = of_policies[name]["additionalProperties"]
        of_policies[name] |= {
            "type": ["object", "null"],
            "additionalProperties": {"anyOf": [each, {"type": "null"}]},
        }
    names = sorted((namespace_policies.NAMES | topic_policies.NAMES).difference(POLICIES))
    definitions["Policies"]["properties"] = {name: of_policies[name] for name in POLICIES} | {
        name: {"description": "As Pulsar shows it among all policies of a namespace or a topic."}
        for name in names
    }
    definitions["ServiceConfiguration"]["properties"].pop("profile", None)
    definitions["ServiceConfiguration"]["properties"] |= {
        name: {"description": "No effect here."} for name in sorted(WITHOUT_EFFECT)
    }
    for definition in definitions.values():
        if "description" in definition:
            definition["description"] = " ".join(definition["description"].replace("``", "`").split())
    named = {"type": "object", "additionalProperties": {"$ref": "#/$defs/Policies"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Magnetar policies",
        "description": "Policies under which a log is folded, with the names and units of Pulsar's admin API and broker.conf.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "profile": {
                "enum": [*PROFILE_OF],
                "description": "The broker's defaults are those of this Pulsar version.",
            },
            "broker": {
                "$ref": "#/$defs/ServiceConfiguration",
                "description": "Settings of broker.conf.",
            },
            "namespaces": {**named, "description": "Policies of namespaces, by tenant/namespace."},
            "topics": {**named, "description": "Policies of topics, by full name."},
        },
        "$defs": definitions,
    }
