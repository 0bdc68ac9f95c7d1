"""What all HTTP servers of genenv share.

| module | holds |
|---|---|
| `guard` | keys of servers, and the middleware that refuses requests before a route sees them |
| `parsing` | bodies of requests as values; large ones in a process of their own |
| `server` | a server in this process, in a thread or for the command line |
"""
