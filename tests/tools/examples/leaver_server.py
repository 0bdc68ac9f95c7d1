"""An MCP server without any package that starts a program in a session of its own, and leaves it behind."""

import json
import subprocess
import sys

subprocess.Popen(
    ["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
)
TOOL = {"name": "wait", "inputSchema": {"type": "object", "properties": {}}}
ANSWERS = {
    "initialize": {"capabilities": {"tools": {}}, "serverInfo": {"name": "leaver", "version": "1"}},
    "tools/list": {"tools": [TOOL]},
}

for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        told = {"error": {"code": -32601, "message": "unknown"}}
        if message["method"] in ANSWERS:
            told = {"result": dict(ANSWERS[message["method"]])}
        if message["method"] == "initialize":
            told["result"]["protocolVersion"] = message["params"]["protocolVersion"]
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **told}), flush=True)
