"""The messages of a program's admin socket (see `admin_socket`). Who asks loads them without the runtime."""

from __future__ import annotations

import struct

import msgspec

from monarch._mesh.inspection.survey_answers import SurveyAnswers

NAME = "door"
LARGEST_ANSWER = 256 << 20  # a larger one is not sent; the reason is
LENGTH = struct.Struct("!I")  # before each message


class AskAll(msgspec.Struct, frozen=True, tag="ask"):
    """A question to the processes of the program; the answer is AskAnswers. Fields as those of `survey.ask`."""

    question: str
    argument: bytes = b""
    timeout: float = 2.0
    only: list[str] | None = None
    agents: bool = False


class StreamRequest(msgspec.Struct, frozen=True, tag="stream"):
    """The connection becomes a stream of that name. The answer is Streaming; what follows is the stream's."""

    name: str
    argument: bytes = b""


class AskAnswers(msgspec.Struct, frozen=True, tag="answers"):
    answers: SurveyAnswers


class Streaming(msgspec.Struct, frozen=True, tag="streaming"):
    pass


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    why: str


Request = AskAll | StreamRequest
Response = AskAnswers | Streaming | Refused

_encode = msgspec.msgpack.Encoder().encode


def packed(message: Request | Response) -> bytes:
    body = _encode(message)
    return LENGTH.pack(len(body)) + body
