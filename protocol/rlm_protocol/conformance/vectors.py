"""Promises as data: steps to take, and what one exchange must look like."""

import tomllib
from importlib.resources import files
from typing import Any, Literal

import msgspec

PROFILES = ("core", "interrupt", "bridge", "snapshot")
Profile = Literal["core", "interrupt", "bridge", "snapshot"]
Event = dict[str, Any]


class Repeated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A long line, without storing it."""

    repeat: str
    times: int


class Hex(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that JSON cannot hold."""

    hex: str


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing to do or to wait for. Exactly one of the first group is set."""

    send: list[dict[str, Any]] | None = None
    raw: str | dict[str, Any] | None = None
    event: dict[str, Any] | None = None
    finish: str | None = None
    ask: str | None = None
    release: str | None = None
    silence_ms: int | None = None
    close_stdin: bool = False
    restart: bool = False
    exit: int | None = None
    file: str | None = None
    # of `file`, or of `finish` (stream -> its whole text)
    text: Any = None
    # of `ask` and `release`
    payload: dict[str, Any] | None = None
    hold: str | None = None
    reply: dict[str, Any] | None = None
    # of `finish`
    events: list[str] | None = None
    status: str | None = None
    result: str | None = None
    error: str | None = None
    text_any: dict[str, str] | None = None
    lines: dict[str, int] | None = None
    last_line: dict[str, str] | None = None
    chars: dict[str, int] | None = None
    names: list[str] | None = None
    saved: list[str] | None = None
    skipped: list[str] | None = None
    restored: list[str] | None = None


class Promise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One promise of the protocol."""

    id: str
    profile: Profile
    title: str
    steps: list[Step]

    def snippets(self) -> set[str]:
        """Give the names of the cells it runs."""
        sent = (message for step in self.steps for message in step.send or ())
        return {message["snippet"] for message in sent if "snippet" in message}


class Language(msgspec.Struct, frozen=True):
    """A language's snippets, the texts of their results, the names of its errors."""

    snippets: dict[str, str]
    results: dict[str, str]
    errors: dict[str, str]


class Broken(Exception):
    """A promise was not kept; the text says how."""


def promises(profiles: tuple[str, ...] = PROFILES) -> list[Promise]:
    """Give the promises of these profiles, in order."""
    decode = msgspec.json.Decoder(Promise).decode
    found = []
    for profile in profiles:
        text = files(__package__).joinpath("vectors", f"{profile}.jsonl").read_bytes()
        found += [decode(line) for line in text.splitlines()]
    return found


def language(name: str) -> Language:
    """Give a language. Raises FileNotFoundError for one that the kit does not know."""
    text = files(__package__).joinpath("languages", f"{name}.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), Language)


def line_bytes(raw: str | dict[str, Any]) -> bytes:
    """Give the bytes of a raw line, without its end."""
    if isinstance(raw, str):
        return raw.encode()
    if "hex" in raw:
        return bytes.fromhex(msgspec.convert(raw, Hex).hex)
    row = msgspec.convert(raw, Repeated)
    return row.repeat.encode() * row.times


def fits(event: Event, pattern: dict[str, Any]) -> bool:
    """Tell whether an event has every field of a pattern."""
    return all(key in event and event[key] == value for key, value in pattern.items())


def check_exchange(id_: str, got: list[Event], step: Step, words: Language) -> None:
    """
    Compare one request's events with what a `finish` step asks for.

    Raises:
        Broken: they differ.
    """
    own = [event for event in got if event.get("id") == id_]
    kinds = [event["event"] for event in own]
    done = own[-1]
    if step.events is not None and _runs(kinds) != step.events:
        raise Broken(f"events {_runs(kinds)}, not {step.events}")
    if step.status is not None and done.get("status") != step.status:
        raise Broken(f"status {done.get('status')!r}, not {step.status!r}: {_short(own)}")
    if step.result is not None:
        texts = [event.get("text") for event in own if event["event"] == "result"]
        if texts != [words.results[step.result]]:
            raise Broken(f"results {texts}, not {words.results[step.result]!r}: {_short(own)}")
    if step.error is not None:
        names = [event.get("ename") for event in own if event["event"] == "error"]
        if names != [words.errors[step.error]]:
            raise Broken(f"errors {names}, not {words.errors[step.error]!r}: {_short(own)}")
        if not all(isinstance(e.get("traceback"), list) for e in own if e["event"] == "error"):
            raise Broken("an error without a list of traceback lines")
    _check_output(got, own, step)
    for field in ("names", "saved", "restored"):
        wanted = getattr(step, field)
        if wanted is not None and done.get(field) != wanted:
            raise Broken(f"{field} {done.get(field)}, not {wanted}")
    if step.skipped is not None:
        rows = {row["name"]: row.get("reason") for row in done.get("skipped", [])}
        if set(step.skipped) - {name for name, reason in rows.items() if reason}:
            raise Broken(f"skipped {rows}, not {step.skipped} with reasons")


def _check_output(got: list[Event], own: list[Event], step: Step) -> None:
    for stream, text in (step.text or {}).items():
        if _text(own, stream) != text:
            raise Broken(f"{stream} {_text(own, stream)[:80]!r}, not {text[:80]!r}")
    for stream, text in (step.text_any or {}).items():
        if _text(got, stream) != text:
            raise Broken(f"{stream} {_text(got, stream)[:80]!r}, not {text[:80]!r}")
    for stream, count in (step.chars or {}).items():
        if len(_text(own, stream)) != count:
            raise Broken(f"{len(_text(own, stream))} characters of {stream}, not {count}")
    for stream, count in (step.lines or {}).items():
        if _text(own, stream).count("\n") != count:
            raise Broken(f"{_text(own, stream).count(chr(10))} lines of {stream}, not {count}")
    for stream, line in (step.last_line or {}).items():
        if _text(own, stream).splitlines()[-1:] != [line]:
            raise Broken(f"the last line of {stream} is not {line!r}")


def _text(events: list[Event], stream: str) -> str:
    return "".join(event.get("text", "") for event in events if event["event"] == stream)


def _runs(kinds: list[str]) -> list[str]:
    """Give the kinds in order, each run of equals once: output may come in any number of events."""
    return [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]


def _short(events: list[Event]) -> str:
    return msgspec.json.encode(events)[:300].decode("utf-8", "replace")
