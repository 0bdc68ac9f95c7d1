"""genenv's own engine behind the Tinker protocol: `genenv tinker-server`.

| module | holds |
|---|---|
| `requests` `replies` | what clients send, and what they are sent back: JSON and protobuf |
| `messages` | the protobuf messages of the protocol, as classes |
| `sessions` | sessions, their adapters and samplers; answers until they are fetched |
| `checkpoints` | folders with `tinker://` paths, whole or not there |
| `service` | what the protocol can ask for |
| `serving` | HTTP routes; a server in this process or for the command line |
| `imitation` | deviations of other servers, for tests of clients |
"""
