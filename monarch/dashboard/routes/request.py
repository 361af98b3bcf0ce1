"""The wish of a request: its path, its query and its JSON, checked."""

from __future__ import annotations

from typing import Any

from monarch._http.answering import BadRequest
from monarch.config.units import parse_duration
from monarch.dashboard.pages.api import NotFound

_MOST_ID = 2**64 - 1
_LARGEST = 2**63
_LONGEST_NAME = 200


class PageRequest:
    def __init__(self, request: Any, body: dict[str, Any]) -> None:
        self._request = request
        self.body = body

    @property
    def path(self) -> str:
        return str(self._request.url.path)

    @property
    def takes_gzip(self) -> bool:
        return "gzip" in self._request.headers.get("accept-encoding", "")

    def path_id(self, missing: str, name: str = "id") -> int:
        """The id in the path; what is no id is nobody's: NotFound with `missing`."""
        found = _id(self._request.path_params[name])
        if found is None:
            raise NotFound(missing)
        return found

    def name(self) -> str:
        return str(self._request.path_params["name"])

    def id(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        found = _id(text)
        if found is None:
            raise BadRequest(f"{name} is an id, a whole number, not {text!r}")
        return found

    def needed_id(self, name: str) -> int:
        found = self.id(name)
        if found is None:
            raise BadRequest(f"say which: ?{name}=")
        return found

    def text(self, name: str) -> str | None:
        text = self._request.query_params.get(name)
        return text[:_LONGEST_NAME] if text else None

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(sorted({part.strip() for part in (self.text(name) or "").split(",")} - {""}))

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        return default if text is None else text.lower() in ("true", "1", "yes")

    def seconds(self) -> float | None:
        """Returns `?seconds=`: how far back."""
        text = self.text("seconds")
        if text is None:
            return None
        try:
            found = parse_duration(text, bare="s")
        except ValueError:
            found = 0.0
        if not 1 <= found <= 31 * 86400:
            raise BadRequest(f"seconds is a number from 1 to {31 * 86400}, not {text!r}")
        return found

    def number(self, name: str) -> float | None:
        """A positive number of the JSON; None when it is not given."""
        found = self.body.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < _LARGEST:
            raise BadRequest(f"{name} is a positive number below 2**63")
        return float(found)


def _id(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= _MOST_ID else None
