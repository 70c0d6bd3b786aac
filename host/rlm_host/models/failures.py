"""What went wrong with a vendor, in our kinds. A table; the first row that fits wins."""

import re

from .provider import ErrorKind, ProviderError

MESSAGE_CHARS = 500
RETRY_AFTER_MAX_MS = 3_600_000
"""Longer wishes are cut to this: a wrong date in one header must not silence a key for years."""
KINDS: tuple[tuple[str, ErrorKind], ...] = (
    ("ModelContextWindowExceededError", "context_overflow"),
    ("ModelAuthenticationError", "auth"),
    ("ModelNotFoundError", "not_found"),
    ("ModelRequestRejectedError", "rejected"),
    ("ModelQuotaExceededError", "quota"),
    ("ModelRateLimitError", "rate_limit"),
    ("ModelUnavailableError", "overloaded"),
    ("ModelServerError", "server"),
    ("ModelTimeoutError", "timeout"),
    ("ModelRequestTimeout", "timeout"),
    ("ModelConnectionError", "connection"),
    ("ContentFilterError", "content_filter"),
    ("UnexpectedModelBehavior", "bad_output"),
    ("UserError", "rejected"),
)
"""Names of the library's classes; a name fits the class and those derived from it."""

OVERFLOWS = (
    "available context size",
    "context length",
    "context size",
    "context window",
    "prompt is too long",
)
"""How servers word an overflow that they report as a plain rejection (llama.cpp, vLLM, Ollama)."""

PASSING = frozenset((408, 409, 425, 429))
"""Client errors that pass: a timeout, a conflict, too early, too many."""

SHAPES = (AttributeError, TypeError, LookupError, ValueError)
"""What the library raises over an event that has not the dialect's shape, such as `null`."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class Fault(Exception):
    """What we find wrong where the library finds nothing."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind


def failure(error: Exception, *, partial: bool, secret: str) -> ProviderError:
    """Give the error for the session; the key is taken out of the vendor's words."""
    names = {cls.__name__ for cls in type(error).__mro__}
    kind = next((kind for name, kind in KINDS if name in names), None)
    if isinstance(error, Fault):
        kind = error.kind
    message = _words(error)
    status = getattr(error, "status_code", getattr(error.__cause__, "status_code", None))
    if kind is None and "ModelAPIError" in names:
        kind = _base_class_kind(error, status)
    if kind == "rejected" and any(words in message.lower() for words in OVERFLOWS):
        kind = "context_overflow"
    if kind is None and isinstance(error, SHAPES):
        kind, message = "bad_output", f"The server sent what is no event of an answer: {message}"
    if isinstance(status, int) and 300 <= status < 400:
        # Not followed: the key was meant for this server only.
        kind, message = "rejected", f"The server redirects ({status}): correct its base_url."
    return ProviderError(
        kind or "unknown",
        (message.replace(secret, "***") if secret else message)[:MESSAGE_CHARS],
        retry_after_ms=_retry_after_ms(getattr(error, "retry_after", None)),
        status=status if isinstance(status, int) else None,
        partial=partial,
    )


def clean(text: str) -> str:
    """Give the text with lone surrogates replaced: JSON can say them, UTF-8 cannot."""
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _retry_after_ms(wished_s: object) -> int | None:
    if not isinstance(wished_s, int | float) or not wished_s >= 0:
        return None
    return round(min(wished_s * 1000, RETRY_AFTER_MAX_MS))


def _base_class_kind(error: Exception, status: object) -> ErrorKind:
    """Tell apart what the library raises its base class for: an undecodable chunk is one of it."""
    if isinstance(status, int) and 400 <= status < 500 and status not in PASSING:
        return "rejected"
    return "bad_output" if isinstance(error.__cause__, ValueError) else "server"


def _words(error: Exception) -> str:
    """Give the vendor's own sentence, where its body has one, else the library's."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    said = inner.get("message") if isinstance(inner, dict) else None
    return clean(said if isinstance(said, str) and said else str(error) or type(error).__name__)
