"""A run on a Ray cluster: `genenv launch` places its servers and its trainer.

| module | contents |
|---|---|
| `hosts` | the requested resources, and the processes on a node: server, trainer, checks of the shared disk |
| `on_ray` | the cluster; the only module that imports Ray |
"""
