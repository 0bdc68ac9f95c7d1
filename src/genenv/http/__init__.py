"""Shared parts of all HTTP servers and clients of genenv.

| module | contents |
|---|---|
| `guard` | keys, proxies, and the middleware that refuses requests before a route receives them |
| `parsing` | parses request bodies; large ones in a separate process |
| `server` | runs a server in a thread, or in the main thread for a command |
"""
