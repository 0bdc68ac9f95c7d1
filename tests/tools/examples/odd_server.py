"""An MCP server without any package, whose tools and parameters have names that Python cannot write."""

import json
import sys
from pathlib import Path

FILE = Path("bookings.json")
TEXT = {"type": "string"}
TOOLS = {
    "get-booking": ("Show a booking, e.g. B-1. Nothing is changed.", {"booking-id": TEXT}),
    "bookings.cancel": ("Cancel a booking.", {"booking-id": TEXT}),
    "from": ("List the bookings of a class.", {"class": {"type": "string", "enum": ["first", "second"]}}),
    "预订": ("Book a seat.", {"from": TEXT, "class": {"type": "string", "enum": ["first", "second"]}}),
    "count": ("Count the bookings.", {}),
}


def called(name, args):
    bookings = json.loads(FILE.read_text())
    if name == "get-booking":
        return bookings[args["booking-id"]]
    if name == "from":
        return [key for key, one in bookings.items() if one["class"] == args["class"]]
    if name == "count":
        return {"bookings": len(bookings)}
    if name == "bookings.cancel":
        del bookings[args["booking-id"]]
    else:
        bookings[f"B-{len(bookings) + 10}"] = args
    FILE.write_text(json.dumps(bookings))
    return {"bookings": len(bookings)}


def answer(method, params):
    if method == "initialize":
        info = {"name": "odd", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        schemas = {
            name: {"type": "object", "properties": one, "required": list(one)}
            for name, (_, one) in TOOLS.items()
        }
        return {
            "tools": [
                {"name": name, "description": said, "inputSchema": schemas[name]}
                for name, (said, _) in TOOLS.items()
            ]
        }
    try:
        text = json.dumps(called(params["name"], params.get("arguments") or {}))
    except (KeyError, OSError) as error:
        return {"content": [{"type": "text", "text": f"it failed: {error}"}], "isError": True}
    return {"content": [{"type": "text", "text": text}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
