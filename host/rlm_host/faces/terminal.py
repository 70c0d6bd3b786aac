"""How a session looks in a terminal while it works: text as it streams, cells, results, cost."""

from typing import Any

from rich.status import Status
from rich.syntax import Syntax
from rich.text import Text

from .console import Console

RESULT_CHARS = 2_000
OUTPUT_LINES = 20


class TerminalView:
    """Writes to one console; holds what is half shown. Every payload is plain data of the wire."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._streaming: str | None = None  # id of the message whose text is being shown
        self._shown = 0

    def close(self) -> None:
        """Leave the terminal as it was found."""
        self._still()
        self._end_of_line()

    def waiting(self, text: str) -> None:
        """Show that something goes on; only where there is somebody to see it move."""
        if self._status is None and self._console.is_terminal and self._streaming is None:
            self._status = self._console.status(Text(text, style="dim"))
            self._status.start()

    def notification(self, method: str, params: dict[str, Any]) -> None:
        """Show one notification of the session."""
        match method:
            case "turn/started":
                self.waiting("working")
            case "item/started" | "item/completed":
                self._item(params["item"], completed=method == "item/completed")
            case "item/delta" if params["channel"] == "text":
                self._text(params["itemId"], params["text"], params["offset"])
            case "repl/output" if params.get("text"):
                self._output(params["text"])

    def problem(self, error: dict[str, Any]) -> None:
        """Show why a turn failed."""
        self._line(Text(f"{error['kind']}: {error['message']}", style="red"))

    def summary(self, usage: dict[str, Any], session: dict[str, Any]) -> None:
        """Show what it cost and where it lies."""
        own, subtree = usage["own"], usage["subtree"]
        line = Text(f"cost {cost(subtree)}", style="dim")
        if subtree != own:
            line.append(f", of which {cost(own)} without its children")
        self._line(line)
        if session.get("journalPath"):
            self._line(Text(f"journal {session['journalPath']}", style="dim"))

    # --- items ------------------------------------------------------------------------------------

    def _item(self, item: dict[str, Any], *, completed: bool) -> None:
        kind = item["type"]
        if kind == "agentMessage":
            self._text(item["id"], item["text"], 0)
            if completed:
                self._end_of_line()
                self.waiting("working")
        elif completed and kind == "replCell":
            self._cell(item)
            self.waiting("working")
        elif completed and kind == "childSpawn":
            self._line(Text(f"child {item['name']} ({item['model']})", style="cyan"))
        elif completed and kind == "childMessage":
            said = item.get("notice") or item["text"]
            self._line(Text(f"{item['senderName']}: {said[:RESULT_CHARS]}", style="cyan"))
        elif completed and kind == "toolCall":
            self._line(Text(f"tool {item['name']}", style="cyan"))
        elif completed and kind == "notice":
            self._line(Text(item["text"], style="yellow"))
        elif completed and kind == "error":
            self.problem(item["error"])

    def _cell(self, item: dict[str, Any]) -> None:
        self._line(Syntax(item["code"].strip("\n"), "python", background_color="default"))
        for channel in ("stdout", "stderr"):
            if item.get(channel):
                self._output(item[channel])
        if item.get("result"):
            self._line(Text(f"=> {item['result'][:RESULT_CHARS]}", style="green"))
        if item.get("error"):
            error = item["error"]
            self._line(Text(f"{error['ename']}: {error['evalue']}", style="red"))
        if item.get("artifact"):
            self._line(Text(f"the whole output is artifact {item['artifact']}", style="dim"))

    def _output(self, text: str) -> None:
        lines = text.rstrip("\n").split("\n")
        left_out = len(lines) - OUTPUT_LINES
        for line in lines[:OUTPUT_LINES]:
            self._line(Text(f"  {line[:RESULT_CHARS]}", style="dim"))
        if left_out > 0:
            self._line(Text(f"  ... {left_out} more lines", style="dim"))

    def _text(self, item_id: str, text: str, offset: int) -> None:
        """Show what of a message was not shown yet."""
        if self._streaming != item_id:
            self._end_of_line()
            self._streaming, self._shown = item_id, 0
        fresh = text[max(0, self._shown - offset) :]
        if fresh:
            self._still()
            self._console.print(Text(fresh), end="", soft_wrap=True)
            self._shown = offset + len(text)

    def _line(self, what: Text | Syntax) -> None:
        self._still()
        self._end_of_line()
        self._console.print(what, soft_wrap=True)

    def _end_of_line(self) -> None:
        if self._streaming is not None and self._shown:
            self._console.print()
        self._streaming, self._shown = None, 0

    def _still(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def cost(usage: dict[str, Any]) -> str:
    """Give tokens and money in words; what is not known is said, never taken as nothing."""
    tokens = usage["inputTokens"] + usage["outputTokens"]
    text = f"${usage['costNanoUsd'] / 1e9:.6f} for {tokens:,} tokens"
    unknown = usage["unknownCost"] + usage["unmeasured"]
    return f"at least {text} ({unknown} answers without a price)" if unknown else text
