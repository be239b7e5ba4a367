"""Flower's simulation: a ServerApp, a ClientApp, and Ray actors of one core each, which share the GPU if there is one.

    python -m peers.with_flower WORK OUT ACTORS

Started by run_simulation, which needs no SuperLink process and is therefore the quickest start that Flower has. The
server tells a node which client of the work it is, for node numbers differ from run to run.
"""

import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import version

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from peers.work import Clock, Work, train


@lru_cache
def load_once(folder: str) -> tuple[Work, nn.Module]:
    """Once per actor, not once per message."""
    work = Work(folder)
    return work, work.model()


class Scheduled(FedAvg):
    """FedAvg over the work's cohorts."""

    def __init__(self, work: Work, clock: Clock) -> None:
        nodes = work.setting.clients
        super().__init__(fraction_train=work.setting.cohort / nodes, fraction_evaluate=0.0, min_available_nodes=nodes)
        self.work, self.clock = work, clock

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = super().configure_train(server_round, arrays, config, grid)
        for k, message in enumerate(messages):
            which = ConfigRecord({"work": str(self.work.folder), "turn": server_round - 1, "k": k})
            content = RecordDict({"arrays": arrays, "config": which})
            yield Message(content=content, message_type=MessageType.TRAIN, dst_node_id=message.metadata.dst_node_id)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed:  # Flower would go on without them
            raise RuntimeError(failed[0])
        result = super().aggregate_train(server_round, replies)
        self.clock.tick()
        return result


def train_client(message: Message, context: Context) -> Message:
    config = message.content["config"]
    work, model = load_once(config["work"])
    client = work.cohorts[config["turn"], config["k"]]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = work.x[client], work.y[client]
    train(model, ((x[b], y[b]) for b in work.batches(config["turn"], config["k"])), work.setting.rate)
    metrics = MetricRecord({"num-examples": work.setting.records})
    return Message(
        content=RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )


def main(folder: str, out: str, actors: str) -> None:
    work, clock = Work(folder), Clock(out)
    gpus = 1.0 if work.setting.device == "cuda" else 0.0
    server, client = ServerApp(), ClientApp()
    client.train()(train_client)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        start = ArrayRecord(work.model().state_dict())
        result = Scheduled(work, clock).start(grid, start, num_rounds=work.setting.rounds)
        versions = {name: version(name) for name in ("flwr", "ray", "torch")}
        clock.finish(result.arrays.to_torch_state_dict(), versions)

    run_simulation(
        server,
        client,
        num_supernodes=work.setting.clients,
        backend_config={
            "init_args": {
                "address": "local",  # what another Ray has left in the temporary folder is not joined
                "num_cpus": int(actors),
                "num_gpus": gpus,
                "_node_ip_address": "127.0.0.1",
            },
            "client_resources": {"num_cpus": 1, "num_gpus": gpus / int(actors)},
        },
    )


if __name__ == "__main__":
    # Ray's actors must find the client's functions in a module they can import, which __main__ is not.
    from peers import with_flower

    with_flower.main(*sys.argv[1:])
