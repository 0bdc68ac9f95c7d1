"""An MCP server that answers what it is told to: raw text, in which ID stands for the number of the request.

What it lists as tools is the text of the file that is named, if one is; the tool `say` answers its argument.
"""

import json
import os
import sys
from pathlib import Path

schema = {"type": "object", "properties": {"raw": {"type": "string"}}, "required": ["raw"]}
TOOLS = {
    "tools": [{"name": "say", "inputSchema": schema}, {"name": "fine", "inputSchema": {"type": "object"}}]
}
listed = Path(sys.argv[1]).read_text(encoding="utf-8") if len(sys.argv) > 1 else ""


def raw(text, number):
    line = text.replace("ID", str(number)).encode("utf-8", "surrogatepass")
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def answered(result, number):
    raw(json.dumps({"jsonrpc": "2.0", "id": "#", "result": result}).replace('"#"', "ID"), number)


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    number, params = message["id"], message.get("params", {})
    if message["method"] == "initialize":
        server = {"name": "hostile", "version": "1"}
        version = params["protocolVersion"]
        answered({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}, number)
    elif message["method"] == "tools/list":
        raw(listed, number) if listed else answered(TOOLS, number)
    elif message["method"] != "tools/call":
        raw('{"jsonrpc": "2.0", "id": ID, "error": {"code": -32601, "message": "unknown"}}', number)
    elif params["name"] == "fine":
        answered({"content": [{"type": "text", "text": "fine"}]}, number)
    elif params["arguments"]["raw"] == "FLOOD":
        piece = b"x" * (1 << 20)
        for _ in range(200):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.write(b"\n")
    elif params["arguments"]["raw"] == "HALF":
        os.write(1, b'{"jsonrpc": "2.0", "id": ')
        os._exit(0)
    else:
        raw(params["arguments"]["raw"], number)
