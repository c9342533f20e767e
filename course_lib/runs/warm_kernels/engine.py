"""A papermill engine whose kernels are forks of the warm process: ``papermill --engine lab-warm …``."""

from collections.abc import Sequence
from typing import Any

from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from papermill.engines import NBClientEngine

__all__ = ["WarmEngine"]


class WarmEngine(NBClientEngine):
    """papermill's own engine, with warm kernels.

    More arguments than papermill's: ``warm_server`` (socket; by default the account's shared process), ``cpus`` (the
    cores that the kernel may use) and ``skip_cells_with_tag`` (nbclient's).
    """

    @classmethod
    def execute_managed_notebook(
        cls, nb_man: Any, kernel_name: str, warm_server: str = "", cpus: Sequence[int] = (), **kwargs: Any
    ) -> None:
        """Execute the notebook; papermill calls it."""

        class WarmKernelManager(AsyncKernelManager):
            @property
            def kernel_spec(self) -> KernelSpec | None:
                spec = super().kernel_spec
                config = {"server": warm_server, "cpus": list(cpus)}
                spec.metadata["kernel_provisioner"] = {"provisioner_name": "lab-warm", "config": config}
                return spec

        super().execute_managed_notebook(nb_man, kernel_name, kernel_manager_class=WarmKernelManager, **kwargs)
