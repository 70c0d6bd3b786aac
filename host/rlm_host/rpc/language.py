"""Which messages belong to the language features, and what of them is announced. Loads nothing."""

from typing import Any

LANGUAGE_REQUESTS = frozenset(
    {
        "textDocument/codeLens",
        "textDocument/inlayHint",
        "textDocument/hover",
        "textDocument/completion",
        "workspace/executeCommand",
    }
)
OPENS = "textDocument/didOpen"
LANGUAGE_NOTIFICATIONS = frozenset(
    {
        OPENS,
        "textDocument/didChange",
        "textDocument/didClose",
        "workspace/didChangeWorkspaceFolders",
        "window/workDoneProgress/cancel",
    }
)
COMMANDS = ("rlm.runCell", "rlm.runAbove", "rlm.runAll", "rlm.interrupt", "rlm.useSession")

INCREMENTAL = 2
"""LSP's TextDocumentSyncKind.Incremental."""
CAPABILITIES: dict[str, Any] = {
    "positionEncoding": "utf-16",
    "textDocumentSync": {"openClose": True, "change": INCREMENTAL},
    "codeLensProvider": {"resolveProvider": False},
    "inlayHintProvider": True,
    "hoverProvider": True,
    "completionProvider": {"triggerCharacters": ["."]},
    "executeCommandProvider": {"commands": list(COMMANDS)},
    "workspace": {"workspaceFolders": {"supported": True, "changeNotifications": True}},
}
"""A test holds it against what pygls would announce."""
