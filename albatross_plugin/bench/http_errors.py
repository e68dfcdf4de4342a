"""What went wrong with a request, in words that say what to do: refusals, answers that are none, connections that end early."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping

MOST = 500
_HINTS = {
    301: "use the address that it names",
    302: "use the address that it names",
    307: "use the address that it names",
    308: "use the address that it names",
    401: "give the server's key with --api-key",
    404: "check the address, and the model's name where that is what was not found",
    405: "check the address; is this an OpenAI-style server?",
}


def refusal(status: int, headers: Mapping[str, str], body: bytes, path: str) -> str:
    """An answer of another status than 200. ``headers``: names in lower case."""
    parts = [f"status {status} from {path}: {said(headers, body) or 'nothing else was said'}"]
    if status in (429, 503) and headers.get("retry-after"):
        parts.append(f"Retry-After: {headers['retry-after']} s")
    if headers.get("location"):
        parts.append(f"Location: {headers['location']}")
    if status in _HINTS:
        parts.append(_HINTS[status])
    return "; ".join(parts)


def said(headers: Mapping[str, str], body: bytes) -> str:
    """The message in an error's body: OpenAI's ``error.message``, FastAPI's ``detail``, else its text."""
    text = body.decode(errors="replace").strip()
    if "html" in headers.get("content-type", ""):
        return "a web page, not an API's answer"
    try:
        value = json.loads(text)
    except ValueError:
        return text[:MOST]
    if isinstance(value, dict):
        error = value.get("error")
        message = error.get("message") if isinstance(error, dict) else error
        found = message or value.get("detail") or value.get("message")
        if found:
            text = found if isinstance(found, str) else json.dumps(found)
    return text[:MOST]


def no_connection(host: str, port: int, error: OSError) -> str:
    """Nobody answers at ``host`` and ``port``, or not with TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"no connection to {host}:{port}: its certificate is not accepted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"no connection to {host}:{port}: it does not speak TLS ({error.reason}); try http:// in place of https://"
    return f"no connection to {host}:{port}: {error}; is the server started, and is that its port?"


def unfinished(chunks: int) -> str:
    """A stream whose connection ended in order, but before its end marker."""
    return f"the stream ended without [DONE] after {chunks} pieces of text" + ("" if chunks else "; is this an OpenAI-style server?")


def broken(error: BaseException, chunks: int) -> str:
    """An answer that began and did not end; ``chunks``: pieces of text that had come."""
    so_far = f"after {chunks} pieces of text" if chunks else "before any text"
    if isinstance(error, asyncio.IncompleteReadError):
        return f"the server cut the connection {so_far}"
    if isinstance(error, OSError):
        return f"the connection broke {so_far}: {error}"
    if isinstance(error, json.JSONDecodeError):
        return f"the answer is not JSON: {error.doc[:80]!r}; is this an OpenAI-style server?"
    if isinstance(error, (TypeError, AttributeError, KeyError)):
        return f"the answer is JSON of another form than OpenAI's ({error}); is this an OpenAI-style server?"
    return f"{type(error).__name__}: {error}"
