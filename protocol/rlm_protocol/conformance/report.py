"""What a run found, for people and for machines."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

import msgspec

from .promise import Outcome

WORDS = {"passed": "passed", "failed": "FAILED", "notSupported": "not supported"}
_WIDTH = 100


def line(outcome: Outcome) -> str:
    """Give one row of the table, and below it why a promise was not kept."""
    out = [f"{outcome.id:<28} {WORDS[outcome.verdict]:<14} {outcome.text}"]
    if outcome.verdict != "passed":
        for reason in outcome.reasons:
            out += textwrap.wrap(
                reason, _WIDTH, initial_indent="    - ", subsequent_indent="      "
            ) or ["    -"]
    return "\n".join(out)


def summary(outcomes: Sequence[Outcome]) -> str:
    """Give the last line: how many promises were kept."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    took_s = sum(outcome.took_ms for outcome in outcomes) / 1000
    parts = [f"{counts['passed']} passed", f"{counts['failed']} failed"]
    parts.append(f"{counts['notSupported']} not supported")
    return f"{', '.join(parts)}, in {took_s:.1f} s"


def table(outcomes: Sequence[Outcome]) -> str:
    """Give the whole report for people."""
    return "\n".join([*map(line, outcomes), "", summary(outcomes), ""])


def to_json(outcomes: Sequence[Outcome], *, kind: str, command: Sequence[str]) -> bytes:
    """Give the report as one JSON object: `{kind, command, counts, promises: [...]}`."""
    counts: Counter[str] = Counter(outcome.verdict for outcome in outcomes)
    document = {
        "kind": kind,
        "command": list(command),
        "counts": {verdict: counts[verdict] for verdict in WORDS},
        "promises": outcomes,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def to_junit(outcomes: Sequence[Outcome], *, kind: str) -> bytes:
    """Give the report as JUnit XML: a test case per promise, a class per profile."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    suite = ElementTree.Element(
        "testsuite",
        name=f"rlm-conformance-{kind}",
        tests=str(len(outcomes)),
        failures=str(counts["failed"]),
        errors="0",
        skipped=str(counts["notSupported"]),
        time=f"{sum(outcome.took_ms for outcome in outcomes) / 1000:.3f}",
    )
    for outcome in outcomes:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"{kind}.{outcome.profile}",
            name=outcome.id,
            time=f"{outcome.took_ms / 1000:.3f}",
        )
        text = _xml_text("\n".join(outcome.reasons))
        if outcome.verdict == "failed":
            ElementTree.SubElement(case, "failure", message=outcome.text).text = text
        elif outcome.verdict == "notSupported":
            ElementTree.SubElement(case, "skipped", message=text)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root) + b"\n"


def _xml_text(text: str) -> str:
    """Give text without the characters that XML 1.0 cannot carry, even escaped."""
    return "".join(c if c in "\t\n\r" or c.isprintable() else "\ufffd" for c in text)
