"""A run on a cluster: who places its servers and its trainer, and what stands on each node.

| module | holds |
|---|---|
| `plan` | what is asked of the cluster, and the command lines of servers and trainer |
| `leash` | a program that ends when whoever started it is no more |
| `child` | such a program, what it says, and how it is stopped |
| `hosts` | what stands on a node: a server, the trainer, a look at the disk |
| `on_ray` | the cluster itself: the one module that knows Ray |
"""
