"""The backend `local`: models on this machine, loaded, sampled and trained with torch."""

import logging

# PEFT imports bitsandbytes if it is installed, which then warns of a package that it could use on some CPUs.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
