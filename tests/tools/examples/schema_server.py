"""An MCP server without any package, whose tools have schemas that refer elsewhere, or a pattern that takes for ever."""

import json
import sys

address, file = sys.argv[1:3]
SLOW = r"^([A-Za-z]+\s?)*$"
SCHEMAS = {
    "of_the_web": {"type": "object", "properties": {"id": {"$ref": f"{address}/id.json"}}},
    "of_a_file": {"type": "object", "properties": {"id": {"$ref": f"file://{file}"}}},
    "of_an_anchor": {
        "type": "object",
        "$id": f"{address}/a.json",
        "properties": {"id": {"$dynamicRef": "other.json#id"}},
    },
    "of_itself": {
        "$schema": f"{address}/schema",
        "$id": f"{address}/tree.json",
        "type": "object",
        "properties": {"id": {"$ref": "#/$defs/id"}, "tree": {"$ref": "#/$defs/tree"}},
        "$defs": {
            "id": {"type": "string", "pattern": SLOW},
            "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}},
        },
    },
}


def answer(method, params):
    if method == "initialize":
        about = {"name": "schemas", "version": "1"}
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": about,
        }
    if method == "tools/list":
        promised = {"type": "object", "properties": {"said": {"type": "string", "pattern": SLOW}}}
        return {
            "tools": [
                {"name": name, "description": "Look.", "inputSchema": schema, "outputSchema": promised}
                for name, schema in SCHEMAS.items()
            ]
        }
    said = {"said": params["arguments"]["id"]} if method == "tools/call" else {}
    return {"content": [{"type": "text", "text": json.dumps(said)}], "structuredContent": said}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        told = answer(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": told}), flush=True)
