"""An MCP server without any package that starts a program in a session of its own, and leaves it behind."""

import json
import subprocess
import sys

subprocess.Popen(
    ["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
)
TOOLS = [{"name": name, "inputSchema": {"type": "object", "properties": {}}} for name in ("leave", "wait")]
ANSWERS = {
    "initialize": {"capabilities": {"tools": {}}, "serverInfo": {"name": "leaver", "version": "1"}},
    "tools/list": {"tools": TOOLS},
}

for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        told = {"error": {"code": -32601, "message": "unknown"}}
        if message.get("params", {}).get("name") == "wait":
            continue  # this call gets no answer
        if message["method"] in ANSWERS:
            told = {"result": dict(ANSWERS[message["method"]])}
        if message["method"] == "initialize":
            told["result"]["protocolVersion"] = message["params"]["protocolVersion"]
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **told}), flush=True)
