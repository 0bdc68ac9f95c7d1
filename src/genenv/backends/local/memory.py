"""An update that does not fit into memory is tried once more in smaller pieces."""

from __future__ import annotations

import logging
from collections.abc import Callable

from genenv.backends.local.hardware import release_memory
from genenv.backends.local.model import LocalModel
from genenv.errors import out_of_memory

log = logging.getLogger(__name__)


def within_memory(
    model: LocalModel, tokens: int, run: Callable[[int], None], forget: Callable[[], None]
) -> None:
    """Run with micro-batches of so many tokens; when memory runs out, once more with half of them.

    Args:
        model: what is run.
        tokens: of a micro-batch.
        run: takes the most tokens of a micro-batch.
        forget: lets go of what the first trial has left.
    """
    try:
        run(tokens)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
    else:
        return
    # Outside the handler: while it runs, the error's traceback keeps the tensors that did not fit.
    log.warning("an update ran out of memory; again with micro-batches of %d tokens", tokens // 2)
    forget()
    release_memory(model.device)
    run(tokens // 2)
