"""Environments of other libraries: OpenEnv servers and verifiers tasksets, as environments of genenv.

`genenv.environments` opens them by name, `openenv:http://HOST:PORT` and `verifiers:TASKSET`.
"""
