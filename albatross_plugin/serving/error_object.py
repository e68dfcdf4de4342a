"""An error as OpenAI's clients read it, in an answer, a stream or an item of a batch"""

from __future__ import annotations

from typing import Any

from albatross_plugin.errors import GenerationError, RequestError, printable

KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_object(error: RequestError | GenerationError) -> dict[str, Any]:
    """What stands in ``error``. A half of a surrogate pair, which a client may have sent, cannot be sent back."""
    kind = KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    param = None if error.param is None else printable(error.param)
    return {"message": printable(error.message), "type": kind, "param": param, "code": error.code}
