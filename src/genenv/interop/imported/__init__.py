"""Environments of other libraries (OpenEnv servers, verifiers tasksets) as environments of genenv.

`genenv.environments` opens them by the names `openenv:http://HOST:PORT` and `verifiers:TASKSET`.
"""
