"""What went wrong with a vendor, in our kinds. A table; the first row that fits wins."""

from .provider import ErrorKind, ProviderError

MESSAGE_CHARS = 500
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
    if kind == "rejected" and any(words in message.lower() for words in OVERFLOWS):
        kind = "context_overflow"
    if kind is None and "ModelAPIError" in names:
        kind = _base_class_kind(error)
    retry_after_s = getattr(error, "retry_after", None)
    status = getattr(error, "status_code", None)
    return ProviderError(
        kind or "unknown",
        (message.replace(secret, "***") if secret else message)[:MESSAGE_CHARS],
        retry_after_ms=None if retry_after_s is None else round(retry_after_s * 1000),
        status=status if isinstance(status, int) else None,
        partial=partial,
    )


def _base_class_kind(error: Exception) -> ErrorKind:
    """Tell an undecodable chunk from other failures: the library raises its base class for both."""
    return "bad_output" if isinstance(error.__cause__, ValueError) else "server"


def _words(error: Exception) -> str:
    """Give the vendor's own sentence, where its body has one, else the library's."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    said = inner.get("message") if isinstance(inner, dict) else None
    return said if isinstance(said, str) and said else str(error) or type(error).__name__
