"""TLS and headers: what goes around every request of a client, the same for both protocols."""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

# It takes a few dozen failing streams that send this to kill a tritonserver 2.51.
FORBIDDEN = "triton_grpc_error"


@dataclass(frozen=True, slots=True)
class Tls:
    """How to trust the server and what to show it. Files are in PEM form."""

    root_certificates: str | Path | None = None  # None: those that come with the system or with gRPC
    client_certificate: str | Path | None = None  # with the chain that leads to the root, if there is one
    client_key: str | Path | None = None  # not encrypted

    def context(self) -> ssl.SSLContext:
        """For HTTP. Raises `ValueError` that names the file which is missing or not in the right form."""
        if (self.client_certificate is None) != (self.client_key is None):
            raise ValueError("client_certificate and client_key go together: one of them is missing")
        roots, certificate, key = self.root_certificates, self.client_certificate, self.client_key
        try:
            context = ssl.create_default_context(cafile=roots)
        except OSError as error:
            raise ValueError(f"root certificates {str(roots)!r}: {error.strerror or error}") from None
        if certificate is not None:
            try:
                context.load_cert_chain(certificate, key, password=lambda: b"")
            except OSError as error:
                files = f"client certificate {str(certificate)!r} with key {str(key)!r}"
                raise ValueError(f"{files}: {error.strerror or error}") from None
        return context

    def credentials(self) -> grpc.ChannelCredentials:
        """For gRPC. Raises what `context` raises."""
        self.context()  # gRPC would say only when it connects, and not which file
        return grpc.ssl_channel_credentials(
            _content(self.root_certificates), _content(self.client_key), _content(self.client_certificate)
        )


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """`headers` with their names in lower case, as gRPC wants them.

    Raises:
        ValueError: a name or value cannot be sent by either protocol, or the server would not survive it.
    """
    checked = {name.lower(): value for name, value in headers.items()}
    for name, value in checked.items():
        if name == FORBIDDEN:
            raise ValueError(f"header {name!r} is not sent: failing streams that carry it kill a tritonserver 2.51")
        if not re.fullmatch(r"[0-9a-z_.-]+", name) or name.endswith("-bin"):
            raise ValueError(f"header name {name!r}: letters, digits, '_', '.' and '-' only, and no '-bin' at the end")
        if not re.fullmatch(r"[\x20-\x7e]*", value):
            raise ValueError(f"value of header {name!r} has other than printable ASCII characters")
    return checked


def _content(file: str | Path | None) -> bytes | None:
    return None if file is None else Path(file).read_bytes()
