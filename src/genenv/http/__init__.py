"""What all HTTP servers of genenv share.

| module | holds |
|---|---|
| `keys` | the key of a server: how it is found, made and sent |
| `guard` | the middleware that refuses requests before a route sees them |
| `parsing` | bodies of requests as values; large ones in a process of their own |
| `http` | a server in this process, in a thread or for the command line |
"""
