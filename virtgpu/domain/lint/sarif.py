"""Findings as SARIF 2.1.0, which code hosts and editors read (OASIS, sarif-v2.1.0)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from virtgpu.domain.lint.model import RULES, Finding

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def sarif(results: Iterable[tuple[str, Sequence[Finding]]], version: str) -> dict[str, Any]:
    """One run with the findings of several sources; only rules that were broken are described."""
    listed = [(source, finding) for source, findings in results for finding in findings]
    codes = sorted({finding.code for _, finding in listed})
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "virtgpu",
                        "version": version,
                        "rules": [_rule(code) for code in codes],
                    }
                },
                "results": [_result(source, one, codes) for source, one in listed],
            }
        ],
    }


def _rule(code: str) -> dict[str, Any]:
    rule = RULES[code]
    return {
        "id": code,
        "name": rule.name,
        "shortDescription": {"text": rule.name.replace("-", " ")},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.remedy}. Source: {rule.source}."},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(source: str, one: Finding, codes: Sequence[str]) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": quote(source)}}
    if one.line:
        place["region"] = {"startLine": one.line}
    text = one.message if one.remedy is None else f"{one.message}. {one.remedy}"
    return {
        "ruleId": one.code,
        "ruleIndex": codes.index(one.code),
        "level": one.severity,
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
    }
