"""A run on a Ray cluster: `genenv launch` places its servers and its trainer.

| module | holds |
|---|---|
| `hosts` | what is asked of the cluster; what runs on a node: a server, the trainer, a look at the disk |
| `child` | a program that ends when whoever started it is gone, what it prints, and how it is stopped |
| `on_ray` | the cluster itself: the one module that knows Ray |
"""
