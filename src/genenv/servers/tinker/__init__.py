"""genenv's own engine behind the Tinker protocol: `genenv tinker-server`.

| module | holds |
|---|---|
| `wire` | the protobuf encoding, byte by byte |
| `bodies` `replies` | what clients send; what they are sent back, as protobuf and as JSON |
| `worker` `futures` | one thread for heavy work, the order of requests; answers until they are fetched |
| `checkpoints` | folders with `tinker://` paths, whole or not there |
| `clients` `service` | sessions, adapters and samplers; what the protocol can ask for |
| `routes` `serving` | HTTP; a server in this process or for the command line |
| `quirks` | the manners of other servers, for tests of clients |
"""
