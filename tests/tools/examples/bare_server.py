"""An MCP server without any package, which can be told to misbehave: a ledger of accounts in a folder.

Its second argument, if there is one, is a file that gets a line for each start and each call.
"""

import json
import os
import random
import secrets
import sys
import time
import uuid
from pathlib import Path

mode, ledger = sys.argv[1], Path("accounts.json")
calls = 0
remembered = json.loads(ledger.read_text()) if ledger.exists() else {}


def log(line):
    if len(sys.argv) > 2:
        with open(sys.argv[2], "a") as file:
            file.write(f"{line}\n")


log("start")
if mode == "dies":
    sys.exit("no licence was found")
if mode == "babbles":
    print("Welcome! This is a fine server.", flush=True)
if mode in ("babbles", "silent"):
    time.sleep(60)

STRING, NUMBER = {"type": "string"}, {"type": "number", "minimum": 1}
TOOLS = {
    "open_account": ("Open an account.", {"owner": STRING, "city": STRING}),
    "deposit": ("Deposit money.", {"account_id": STRING, "amount": NUMBER}),
    "get_account": ("Get an account.", {"account_id": STRING}),
    "find_account": ("Find an account by its owner.", {"owner": STRING}),
    "close_account": ("Close an account.", {"account_id": STRING}),
    "last_log": ("Get the last line of the log.", {}),
}
MORE = {
    "hangs": {"hang": ("Hang.", {})},
    "waits": {"hang": ("Hang.", {}), "wait": ("Wait.", {"seconds": {"type": "number"}})},
    "ends": {"end": ("End.", {})},
    "draws": {"draw": ("Draw at random.", {})},
}


def called(name, args):
    if name == "draw":
        return [str(uuid.uuid4()), random.randint(0, 10**9), secrets.token_hex(4), os.urandom(4).hex()]
    accounts = remembered if mode == "keeps" else json.loads(ledger.read_text())["accounts"]
    accounts = accounts.get("accounts", accounts) if mode == "keeps" else accounts
    if name == "hang":
        time.sleep(60)
    if name == "wait":
        time.sleep(args["seconds"])
        return {"waited": args["seconds"]}
    if name == "end":
        os._exit(1)
    if name == "last_log":
        return {"at": time.time_ns(), "by": "clerk"}
    if name == "open_account":
        args = {"account_id": f"A-{len(accounts) + 1}", **args, "balance": 0}
        accounts[args.pop("account_id")] = args
    elif name == "find_account":
        return next(
            {"account_id": key, **one} for key, one in accounts.items() if one["owner"] == args["owner"]
        )
    else:
        one = accounts[args["account_id"]]
        if name == "deposit":
            one["balance"] += args["amount"]
        elif name == "close_account":
            del accounts[args["account_id"]]
        else:
            return one
    ledger.write_text(json.dumps({"accounts": accounts}))
    return {"accounts": len(accounts)}


def answer(method, params):
    if method == "initialize":
        version = params["protocolVersion"]
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "bare", "version": "1"},
        }
    if method == "tools/list":
        tools = {**TOOLS, **MORE.get(mode, {})}
        at = int(params.get("cursor") or 0)
        more = {"nextCursor": "0" if mode == "circle" else str(at + 1)}
        if mode == "paged":
            more = more if at + 1 < len(tools) else {}
            tools = dict([*tools.items()][at : at + 1])
        return (more if mode in ("paged", "circle", "endless") else {}) | {
            "tools": [
                {
                    "name": name,
                    "description": said,
                    "inputSchema": {"type": "object", "properties": schema, "required": list(schema)},
                }
                for name, (said, schema) in tools.items()
            ]
        }
    if method == "tools/call":
        log(params["name"])
        try:
            text = json.dumps(called(params["name"], params.get("arguments") or {}))
        except (KeyError, StopIteration) as error:
            return {"content": [{"type": "text", "text": f"Error: there is no {error}"}]}
        return {"content": [{"type": "text", "text": text}]}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = answer(message["method"], message.get("params", {}))
    told = {"result": result} if result is not None else {"error": {"code": -32601, "message": "unknown"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **told}), flush=True)
