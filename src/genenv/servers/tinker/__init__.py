"""`genenv tinker-server`: the local engine behind the Tinker protocol.

| module | contents |
|---|---|
| `requests` `replies` | request bodies and response bodies, in JSON and protobuf |
| `sessions` | sessions with their adapters and samplers; responses until a client fetches them |
| `checkpoints` | checkpoint folders addressed by `tinker://` paths, written atomically |
| `service` | the operations of the protocol |
| `serving` | HTTP routes, and the server that the command line and tests start |
| `imitation` | deviations of other Tinker servers, for tests of clients |
"""
