"""An MCP server without any package that keeps the books of a library in memory, and loads slowly.

`--log FILE`: it gets a line for each time that the server is loaded, and for each call. Other arguments:
`asyncio` reads its input in an event loop, `thread` starts a thread while it is loaded, `process` tells whether
the process that answers is the one that was loaded, as no fork is, `folder` makes a file while it is loaded, `luck`
answers with a number that was drawn while it was loaded, and `crash` has a tool that ends the server. `closed`
closes all its files, `dies` and `hangs` do so in each process that is forked, `output` keeps its output for
itself, `temporary` notes in a temporary file who has a book, and `exit` ends as Python does, with what it does at
the end.
"""

import asyncio
import atexit
import json
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

modes = set(sys.argv[1:])
first = os.getpid()
OUTPUT = sys.stdout
LUCK = random.randrange(10**6)
STRING = {"type": "string"}
BOOKS = {
    f"B-{number}": {"title": title, "shelf": shelf, "reader": ""}
    for number, (title, shelf) in enumerate(
        [("Dune", "north"), ("Emma", "east"), ("Ulysses", "north"), ("Walden", "west"), ("Ivanhoe", "east")],
        1,
    )
}
READERS = {"R-1": "Ada", "R-2": "Ben", "R-3": "Cleo"}
TOOLS = {
    "list_books": ("List the books.", {}),
    "show_book": ("Show a book.", {"book_id": STRING}),
    "list_readers": ("List the readers.", {}),
    "lend_book": ("Lend a book to a reader.", {"book_id": STRING, "reader_id": STRING}),
    "take_back": ("Take a book back.", {"book_id": STRING}),
    "move_book": ("Put a book on another shelf.", {"book_id": STRING, "shelf": STRING}),
    "crash": ("End the server.", {}),
}


def log(line):
    if "--log" in sys.argv:
        with open(sys.argv[sys.argv.index("--log") + 1], "a") as file:
            file.write(f"{line}\n")


log("loaded")
time.sleep(0.2)
if "thread" in modes:
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
if "folder" in modes:
    Path("made.txt").write_text("begun")


if "closed" in modes:
    os.closerange(3, 64)
if "dies" in modes:
    os.register_at_fork(after_in_child=lambda: os._exit(3))
if "hangs" in modes:
    os.register_at_fork(after_in_child=lambda: time.sleep(3600))
if "output" in modes:
    OUTPUT = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
if "exit" in modes:
    KEPT = tempfile.TemporaryDirectory()
    atexit.register(log, "ended")
NOTE = Path(tempfile.gettempdir(), "note")
if "temporary" in modes:
    NOTE.write_text("nobody")


class Refused(Exception):
    """The call fails."""


def called(name, args):
    log(name)
    if name == "crash":
        sys.exit(3) if "exit" in modes else os._exit(3)
    if name == "list_readers":
        return [{"reader_id": key, "name": one} for key, one in READERS.items()]
    if name == "list_books":
        return [{"book_id": key, **one} for key, one in BOOKS.items()]
    if (book := BOOKS.get(args["book_id"])) is None:
        raise Refused("there is no such book")
    if name == "lend_book":
        if args["reader_id"] not in READERS:
            raise Refused("there is no such reader")
        if book["reader"]:
            raise Refused("somebody has it")
        book["reader"] = args["reader_id"]
    elif name == "take_back":
        if not book["reader"]:
            raise Refused("nobody has it")
        book["reader"] = ""
    elif name == "move_book":
        book["shelf"] = args["shelf"]
        if "folder" in modes:
            Path("made.txt").write_text(args["shelf"])
    if "temporary" in modes and name == "lend_book":
        NOTE.write_text(args["reader_id"])
        Path(tempfile.mkdtemp(), "more").touch()
    told = {"book_id": args["book_id"], **book}
    if "process" in modes:
        told["own"] = os.getpid() == first
    if "temporary" in modes:
        told |= {"note": NOTE.read_text(), "files": len(os.listdir(NOTE.parent))}
    if "exit" in modes:
        told["kept"] = os.path.isdir(KEPT.name)
    return {**told, "luck": LUCK} if "luck" in modes else told


def answer(method, params):
    if method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "library", "version": "1"}}
        return {"protocolVersion": params["protocolVersion"], **about}
    if method == "tools/list":
        listed = [
            {
                "name": name,
                "description": said,
                "inputSchema": {"type": "object", "properties": schema, "required": list(schema)},
            }
            for name, (said, schema) in TOOLS.items()
        ]
        return {"tools": [one for one in listed if one["name"] != "crash" or modes & {"crash", "exit"}]}
    if method == "tools/call":
        try:
            text, wrong = json.dumps(called(params["name"], params.get("arguments") or {})), False
        except Refused as error:
            text, wrong = str(error), True
        return {"content": [{"type": "text", "text": text}], "isError": wrong}
    return None


def handled(line):
    message = json.loads(line)
    if "id" not in message:
        return
    result = answer(message["method"], message.get("params", {}))
    told = {"result": result} if result is not None else {"error": {"code": -32601, "message": "unknown"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **told}), file=OUTPUT, flush=True)


async def served():
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        handled(line)


if "asyncio" in modes:
    asyncio.run(served())
else:
    for one in sys.stdin:
        handled(one)
