"""Answers to requests that are wrong: pygls itself logs most of them, and the client would wait for ever."""

from __future__ import annotations

from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.protocol import LanguageServerProtocol

# Of JSON-RPC and of the language server protocol.
_PARSE_ERROR, _INVALID_REQUEST, _NOT_INITIALIZED = -32700, -32600, -32002
_FIRST, _LAST = "initialize", "exit"


class AnsweringProtocol(LanguageServerProtocol):
    """Answers every request, if only with what is wrong with it."""

    _is_initialized = False

    def structure_message(self, data: Any) -> Any:
        """A message, from its JSON; an answer takes its place where a request has the wrong form."""
        try:
            return super().structure_message(data)
        except JsonRpcException as error:
            return error.to_response_error() if "method" not in data or "id" not in data else (data["id"], error)

    def handle_message(self, message: Any) -> None:
        """Deal with a message; what is none is answered as JSON-RPC says, and the next one is dealt with."""
        if isinstance(message, tuple):
            _refuse(self, message[0], message[1].code, message[1].message)
            return
        method, number = getattr(message, "method", None), getattr(message, "id", None)
        if not hasattr(message, "jsonrpc"):
            number = message.get("id") if isinstance(message, dict) else None
            _refuse(self, number, _INVALID_REQUEST, "This is no message of JSON-RPC 2.0.")
        elif method is not None and number is not None and self._shutdown:
            _refuse(self, number, _INVALID_REQUEST, "The server was told to shut down.")
        elif method not in (None, _FIRST, _LAST) and not self._is_initialized:
            if number is not None:
                _refuse(self, number, _NOT_INITIALIZED, "The first request is `initialize`.")
        else:
            self._is_initialized = self._is_initialized or method == _FIRST
            super().handle_message(message)


def answer_unreadable(protocol: LanguageServerProtocol, error: Exception) -> bool:
    """Answer what is no JSON, if that is the error."""
    is_unreadable = isinstance(error, ValueError | RecursionError)
    if is_unreadable:
        _refuse(protocol, None, _PARSE_ERROR, "This is no JSON.")
    return is_unreadable


def _refuse(protocol: LanguageServerProtocol, number: Any, code: int, message: str) -> None:
    number = number if isinstance(number, int | str) else None
    protocol._send_response(number, None, types.ResponseError(code=code, message=message))
