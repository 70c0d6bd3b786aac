"""
Count the words of a large text with eight sub-agents, and add up what they hand in.

    python examples/map_reduce.py FILE [--model PROVIDER/MODEL] [--parts 8]

Each child gets a piece of the file, counts it in a kernel of its own, and submits a result that its
contract checks. The scripted model runs the code of its task; a real model is asked to do the same.
"""

import argparse
import asyncio
import collections
import json
from pathlib import Path
from typing import Any

from rlm_host.client import HostClient

TASK = """\
Count the words in bytes {start} to {end} of {path} by running this code, and then stop.

```python
import collections, re
with open({path!r}, "rb") as file:
    file.seek({start})
    text = file.read({end} - {start}).decode("utf-8", "replace")
words = re.findall(r"[a-z']+", text.lower())
top = collections.Counter(words).most_common({top})
await rlm.submit_result({{"words": len(words), "top": dict(top)}})
```
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "words": {"type": "integer", "minimum": 0},
        "top": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "required": ["words", "top"],
    "additionalProperties": False,
}
TOP = 10_000


def pieces(path: Path, parts: int) -> list[tuple[int, int]]:
    """Cut a file into byte ranges that end at white space, so that no word is cut."""
    size, cuts = path.stat().st_size, [0]
    with path.open("rb") as file:
        for number in range(1, parts):
            file.seek(max(size * number // parts, cuts[-1]))
            while (byte := file.read(1)) and not byte.isspace():
                pass
            cuts.append(file.tell())
    return [(start, end) for start, end in zip(cuts, [*cuts[1:], size], strict=True) if start < end]


async def count(
    client: HostClient, path: Path, *, model: str, parts: int
) -> tuple[str, int, collections.Counter[str]]:
    """Give the session, the number of words, and how often each of the most frequent occurs."""
    created = await client.request("session/create", {"cwd": str(path.parent), "model": model})
    session = created["session"]["id"]
    waiting: set[str] = set()
    async with client.notifications("agent/changed", session_id=session) as changes:
        for number, (start, end) in enumerate(pieces(path, parts)):
            task = TASK.format(path=str(path), start=start, end=end, top=TOP)
            options: dict[str, Any] = {
                "name": f"part-{number}",
                "model": model,
                "result": {"schema": SCHEMA, "required": True},
                "context": {"terminal": False},  # we hear of the end here; no turn is needed
            }
            spawn = {"sessionId": session, "prompt": task, "options": options}
            waiting.add((await client.request("agent/spawn", spawn))["agent"]["childId"])
        total, words = 0, collections.Counter[str]()
        async for change in changes:
            agent = change.params["agent"]
            if agent["childId"] not in waiting or agent["status"] in ("queued", "running"):
                continue
            if agent["status"] != "completed":
                raise SystemExit(f"{agent['name']}: {agent['error'] or agent['status']}")
            waiting.remove(agent["childId"])
            asked = {"sessionId": session, "target": agent["childId"]}
            part = (await client.request("agent/result", asked))["value"]
            total += part["words"]
            words.update(part["top"])
            print(f"{agent['name']}: {part['words']} words")
            if not waiting:
                break
    return session, total, words


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="scripted/python")
    parser.add_argument("--parts", type=int, default=8)
    given = parser.parse_args()
    async with HostClient.spawn() as client:
        session, total, words = await count(
            client, given.file.resolve(), model=given.model, parts=given.parts
        )
        tree = await client.request("session/tree", {"sessionId": session})
    print(json.dumps({"words": total, "top": dict(words.most_common(5))}))
    print(f"session {session}, {tree['root']['subtree']['costNanoUsd'] / 1e9:.4f} USD")


if __name__ == "__main__":
    asyncio.run(main())
