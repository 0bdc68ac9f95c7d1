"""Environments of other libraries (OpenEnv servers, verifiers tasksets), and datasets, as environments.

`genenv.environments` opens them by the names `openenv:http://HOST:PORT`, `verifiers:TASKSET`,
`textarena:GAME` and `dataset`.
"""
