"""Errors of the HTTP surface and their one shape: ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Programs look at ``code``; an error that has none of its own has that of its status.
CODES: Mapping[int, str] = {
    400: "invalid_value",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    500: "internal_error",
    501: "unsupported",
}


class ApiError(Exception):
    """An answer other than 200. ``detail``: extra top-level member that RWKV-Runner's clients read."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = CODES.get(status) if code is None else code
        self.param = param
        self.headers = dict(headers or {})
        self.detail = message if detail is None else detail


def error_type(status: int) -> str:
    """OpenAI's word for a class of errors."""
    names = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    return names.get(status, "invalid_request_error" if status < 500 else "server_error")


def error_body(status: int, message: str, *, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    param = None if param is None else printable(param)
    return {"error": {"message": printable(message), "type": error_type(status), "param": param, "code": code}}


def printable(text: str) -> str:
    """``text`` as UTF-8 can express it; halves of surrogate pairs become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def from_exception(error: BaseException) -> ApiError | None:
    """The ApiError for an exception that carries its own ``status`` (a plugin's RequestError), else None."""
    if isinstance(error, ApiError):
        return error
    status = getattr(error, "status", None)
    if not isinstance(status, int) or isinstance(status, bool) or not 400 <= status <= 599:
        return None
    message = getattr(error, "message", None) or str(error) or type(error).__name__
    return ApiError(
        status,
        str(message),
        code=getattr(error, "code", None),
        param=getattr(error, "param", None),
        headers=getattr(error, "headers", None),
    )
