"""Load the text of an OpenAPI document, from a file or an address, with the files that it refers to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, unquote, urljoin, urlsplit

from genenv.errors import UsageError, first_line
from genenv.tools.worlds.openapi.http_client import Headers, HttpClient, Request, UnusableAnswer, status_text
from genenv.tools.worlds.recorded import Ended, NoAnswer
from genenv.types import Json
from genenv.untrusted.documents import MOST_BYTES, as_object, read_document

_MOST_FILES = 5000
_PARTS = "x-files"
"""Name of the part of a joined document that holds the other files."""
_ELSEWHERE = re.compile(r"""\$ref["']?\s*:\s*["']?(?!["'#\s])""")


def is_address(text: str) -> bool:
    """Whether a document is given by a web address."""
    return text.startswith(("https://", "http://"))


def file_text(path: Path) -> str:
    """Return the text of a document in one file."""
    try:
        with path.open("rb") as file:
            return _text(file.read(MOST_BYTES + 1), str(path))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {first_line(error)}") from error


def load_text(source: str) -> str:
    """Return the text of a document; the files that it refers to become parts of it.

    Only files in the folder of the document, or below it, are read. From an address, only its host is asked.

    Raises:
        UsageError: the document cannot be read, or is too large with its files.
    """
    with closing(_Reader(source)) as reader:
        text = reader.read(reader.root)
        if not _ELSEWHERE.search(text):
            return text
        whole = reader.moved(read_document(text, source), reader.root)
        # while a part is moved, more files are read
        parts = {reader.named(one): reader.moved(reader.found[one], one) for one in reader.read_parts}
    return json.dumps({**as_object(whole), _PARTS: parts}) if parts else text


class _Reader:
    """Reads a document and the files of its folder, and redirects the references between them."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._client: HttpClient | None = None
        self.root = source if is_address(source) else Path(source).resolve().as_uri()
        self._folder = urljoin(self.root, ".")
        self._left = MOST_BYTES
        self.found: dict[str, Json] = {}
        """The files read so far by address; null if a file cannot be read."""
        self.read_parts: list[str] = []
        """Addresses of the files that could be read, besides the document."""

    def read(self, address: str) -> str:
        """Return the text at an address."""
        if not is_address(address):
            return file_text(_path(address))
        self._client = self._client or HttpClient("", Headers((), {}), _MOST_FILES, most_bytes=MOST_BYTES)
        try:
            reply = self._client.ask(Request(method="GET", target=address, headers={}))
        except (UnusableAnswer, NoAnswer, Ended) as error:
            raise UsageError(f"{address} cannot be read: {str(error).rstrip('.')}") from error
        if reply.status != 200:
            raise UsageError(f"{address} cannot be read: the server answers {status_text(reply.status)}")
        return _text(reply.body, address)

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._client is not None:
            self._client.close()

    def named(self, address: str) -> str:
        """Return the name of a file within the joined document."""
        return unquote(address.removeprefix(self._folder))

    def moved(self, node: Json, base: str) -> Json:
        """Return a part of the file at an address with its references redirected to the joined document."""
        if isinstance(node, list):
            return [self.moved(one, base) for one in node]
        if not isinstance(node, Mapping):
            return node
        moved = {name: self.moved(one, base) for name, one in node.items()}
        reference = node.get("$ref")
        return {**moved, "$ref": self._redirected(reference, base)} if isinstance(reference, str) else moved

    def _redirected(self, reference: str, base: str) -> str:
        try:
            address, _, pointer = urljoin(base, reference).partition("#")
        except ValueError:  # no address
            return reference
        if address == self.root:
            return f"#{pointer}"
        if address not in self.found:
            self.found[address] = self._read_part(address)
        if self.found[address] is None:
            return reference
        name = quote(self.named(address).replace("~", "~0").replace("/", "~1"), safe="~")
        return f"#/{_PARTS}/{name}{pointer}"

    def _read_part(self, address: str) -> Json:
        """Return the content of a file; null if it is outside the folder, or cannot be read."""
        is_inside = address.startswith(self._folder) and len(self.found) < _MOST_FILES
        if not is_inside or not (is_address(address) or _path(address).is_relative_to(_path(self._folder))):
            return None
        try:
            content = read_document(self.read(address), self.named(address))
        except UsageError:
            return None
        self._left -= len(json.dumps(content))
        if self._left < 0:
            raise UsageError(f"{self._source} with its files is larger than {MOST_BYTES >> 20} MiB")
        self.read_parts.append(address)
        return content


def _path(address: str) -> Path:
    """Return the path of a `file:` address, with all links followed."""
    return Path(unquote(urlsplit(address).path)).resolve()


def _text(content: bytes, name: str) -> str:
    if len(content) > MOST_BYTES:
        raise UsageError(f"{name} is larger than {MOST_BYTES >> 20} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is no text in UTF-8") from error
