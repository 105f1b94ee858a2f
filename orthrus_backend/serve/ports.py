"""The three addresses of a server: which ports are asked for, which are free. Does not talk to the server."""

import ipaddress
import socket
from contextlib import ExitStack
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Endpoints:
    """`host:port` of each protocol, as clients take it."""

    http: str
    grpc: str
    metrics: str

    def as_dict(self) -> dict[str, str]:
        """Protocol to address."""
        return asdict(self)


def exposure(endpoints: Endpoints) -> str:
    """Who can reach `endpoints` and what they may do there; empty when that is only this machine."""
    host = endpoints.http.rpartition(":")[0]
    if ipaddress.ip_address(socket.gethostbyname(host)).is_loopback:
        return ""
    return (
        f"other machines can reach {host}, and nobody is asked for a password:\n"
        f"    http  {endpoints.http}  embed, generate, read names, configurations and statistics of the models\n"
        f"    grpc  {endpoints.grpc}  the same\n"
        f" metrics  {endpoints.metrics}  read how much is asked for and how long it takes\n"
        "Let only a gateway, a proxy or a firewall of yours reach these ports."
    )


def choose_endpoints(host: str, *, http: int, grpc: int, metrics: int) -> Endpoints:
    """Check that the ports are free on `host`; 0 stands for any free one.

    Raises:
        ValueError: a port is taken or asked for twice, or `host` is not an address of this machine.
    """
    addresses: dict[str, str] = {}
    with ExitStack() as held:  # all are held until the last is chosen, so that no two are the same
        asked: dict[int, str] = {}
        for name, port in {"http": http, "grpc": grpc, "metrics": metrics}.items():
            if port and asked.setdefault(port, name) != name:
                raise ValueError(f"--{name}-port {port}: --{asked[port]}-port has the same")
            listener = held.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
                listener.listen()
            except OverflowError:
                raise ValueError(f"--{name}-port {port}: a port is a number from 0 to 65535") from None
            except OSError as error:
                raise ValueError(f"--{name}-port {port}: cannot listen on {host}:{port}: {error.strerror}") from error
            addresses[name] = f"{host}:{listener.getsockname()[1]}"
    return Endpoints(**addresses)
