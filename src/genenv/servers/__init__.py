"""What all HTTP servers of genenv share.

| module | holds |
|---|---|
| `keys` | the key of a server: how it is found, made and sent |
| `guard` | the middleware that refuses requests before a route sees them |
| `http` | a server in this process, in a thread or for the command line |
"""
