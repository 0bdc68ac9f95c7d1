"""Environments of others as environments: OpenEnv servers and verifiers tasksets, played by our agent.

`genenv.environments` opens them by name, `openenv:http://HOST:PORT` and `verifiers:TASKSET`.
"""
