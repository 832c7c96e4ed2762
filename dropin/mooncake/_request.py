"""The heads of HTTP/1: what a caller asks for, and what stands before an answer. Bytes in, bytes out.

Not the server of the standard library: that brings along what reads mails and what speaks TLS, and every store
would wait for them when it is imported.

    GET /metadata?key=k HTTP/1.1       verb, path, version
    Host: localhost                    names in any case; of a name that is given twice the first counts
    (an empty line)

What must stay true: a head has bounds. A line that two readers could take for two things is refused, because the
one before us, a proxy perhaps, may have taken it for the other.
"""

import time
from collections.abc import Callable

# Bytes of a line, and lines of a head.
LINE_BYTES_MAX = 1 << 16
LINES_MAX = 100

# What a name is made of, of a header and of a verb.
TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")

BLANK = ord(" ")

REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Payload Too Large",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class BadHead(Exception):
    """No request that can be answered, and why."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Headers:
    """The lines of a head by their names, in any case."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def add(self, name: str, text: str) -> None:
        self._found.setdefault(name.lower(), text)

    def get(self, name: str, default: str = "") -> str:
        """What stands there, without the blanks around it."""
        return self._found.get(name.lower(), default)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._found


class Head:
    """What stands before the body of a request."""

    __slots__ = ("headers", "minor", "path", "verb")

    def __init__(self, verb: str, path: str, minor: int) -> None:
        self.verb, self.path = verb, path
        # HTTP/1.this.
        self.minor = minor
        self.headers = Headers()

    def __str__(self) -> str:
        return f"{self.verb} {self.path} HTTP/1.{self.minor}"

    def last(self) -> bool:
        """Whether the connection ends with the answer."""
        wish = self.headers.get("Connection").lower()
        return wish == "close" or (self.minor == 0 and wish != "keep-alive")

    def waits(self) -> bool:
        """Whether the caller sends its body when it is told to go on."""
        return self.minor > 0 and self.headers.get("Expect").lower() == "100-continue"


def read_head(readline: Callable[[int], bytes]) -> Head | None:
    """The next head; None: nobody asks any more."""
    line = readline(LINE_BYTES_MAX + 1)
    if line in (b"\r\n", b"\n"):
        # Some callers end a body with one that does not belong to it.
        line = readline(LINE_BYTES_MAX + 1)
    if len(line) > LINE_BYTES_MAX:
        raise BadHead(414, "URI Too Long")
    if not line.endswith(b"\n"):
        # The end of what the caller sends, before it or in the middle of it.
        return None
    head = _request_line(line)
    for _ in range(LINES_MAX + 1):
        line = readline(LINE_BYTES_MAX + 1)
        if line in (b"\r\n", b"\n"):
            return head
        if len(line) > LINE_BYTES_MAX:
            raise BadHead(431, "Request Header Fields Too Large: a line")
        if not line.endswith(b"\n"):
            return None
        _header_line(line, head.headers)
    raise BadHead(431, "Request Header Fields Too Large: too many of them")


def _header_line(line: bytes, headers: Headers) -> None:
    name, colon, rest = line.partition(b":")
    text = rest.strip(b" \t\r\n")
    # No good name has a line that begins with a blank, which some would add to the one before.
    if not colon or not _is_token(name):
        raise BadHead(400, "Bad Request: a header has no good name")
    if b"\r" in text or b"\0" in text:
        raise BadHead(400, "Bad Request: a header has no good text")
    headers.add(str(name, "latin-1"), str(text, "latin-1"))


def _request_line(line: bytes) -> Head:
    # Blanks only: other bytes that Python takes for white space are parts of letters.
    words = line.rstrip(b"\r\n").split(b" ")
    if len(words) != 3 or not _is_token(words[0]) or not words[1] or min(words[1]) <= BLANK:
        raise BadHead(400, "Bad Request: VERB PATH HTTP/1.1 is wanted")
    verb, path, version = (str(word, "latin-1") for word in words)
    major, dot, minor = version.removeprefix("HTTP/").partition(".")
    known = version.startswith("HTTP/") and dot and len(version) == len("HTTP/1.1")
    if not known or not (major.isdecimal() and minor.isdecimal()):
        raise BadHead(400, "Bad Request: no version of HTTP")
    if major != "1":
        raise BadHead(505, "HTTP Version Not Supported")
    return Head(verb, path, int(minor))


def _is_token(name: bytes) -> bool:
    return bool(name) and TOKEN.issuperset(name)


def answer_head(status: int, headers: dict[str, str]) -> bytes:
    """What stands before the body of an answer, with the empty line."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, '')}"]
    lines += ["Server: mooncrate", f"Date: {_date(time.time())}"]
    lines += [f"{name}: {text}" for name, text in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _date(seconds: float) -> str:
    """As HTTP writes it, whatever language this process speaks."""
    at = time.gmtime(seconds)
    day = f"{DAYS[at.tm_wday]}, {at.tm_mday:02} {MONTHS[at.tm_mon - 1]} {at.tm_year}"
    return f"{day} {at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT"
