"""A papermill engine whose kernels are forks of the warm process: ``papermill --engine lab-warm …``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jupyter_client import AsyncKernelManager
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine
from papermill.log import logger

__all__ = ["WarmEngine"]


class WarmEngine(NBClientEngine):
    """papermill's own engine, with warm kernels.

    Takes, beyond papermill's arguments, ``warm_server`` (socket; by default the account's shared process), ``cpus``
    (cores that the kernel may use) and ``skip_cells_with_tag`` (nbclient's).
    """

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: Any,
        kernel_name: str,
        log_output: bool = False,
        stdout_file: Any = None,
        stderr_file: Any = None,
        start_timeout: int = 60,
        execution_timeout: int | None = None,
        warm_server: str = "",
        cpus: Sequence[int] = (),
        **kwargs: Any,
    ) -> None:
        """Execute the notebook; papermill calls it."""
        kwargs.pop("input_path", None)
        manager = AsyncKernelManager(kernel_name=kernel_name, config=kwargs.get("config"))
        manager.kernel_spec.metadata = {
            **manager.kernel_spec.metadata,
            "kernel_provisioner": {
                "provisioner_name": "lab-warm",
                "config": {"server": warm_server, "cpus": list(cpus)},
            },
        }
        client = PapermillNotebookClient(
            nb_man,
            km=manager,
            timeout=execution_timeout or kwargs.pop("timeout", None),
            startup_timeout=start_timeout,
            kernel_name=kernel_name,
            log=logger,
            log_output=log_output,
            stdout_file=stdout_file,
            stderr_file=stderr_file,
            **kwargs,
        )
        client.execute(cleanup_kc=True)
