"""`python -m services.trainer_agent.training.launch OPTIONS`: torchrun whose store listens on the loopback alone.

torchrun's own rendezvous has the store of node 0 listen at every address of its machine. Here nodes reach it through
the connections of their runners (`runner/gang.py`), each at a port of its own loopback.
"""

import socket

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.api import RendezvousInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.run import main

from services.trainer_agent.protocol import RENDEZVOUS


class LoopbackRendezvous(StaticTCPRendezvous):
    def get_backend(self) -> str:
        return RENDEZVOUS

    def next_rendezvous(self) -> RendezvousInfo:
        if self._store is None and self.rank == 0:
            listening = socket.create_server((self.master_addr, self.master_port))
            self._store = TCPStore(
                self.master_addr,
                self.master_port,
                self.world_size,
                is_master=True,
                timeout=self.timeout,
                master_listen_fd=listening.detach(),
            )
        return super().next_rendezvous()


def create(parameters: RendezvousParameters) -> LoopbackRendezvous:
    host, port = parse_rendezvous_endpoint(parameters.endpoint, default_port=-1)
    return LoopbackRendezvous(
        host,
        port,
        rank=int(parameters.config["rank"]),
        world_size=parameters.max_nodes,
        run_id=parameters.run_id,
        timeout=int(parameters.config["timeout"]),
    )


if __name__ == "__main__":
    rendezvous_handler_registry.register(RENDEZVOUS, create)
    main()
