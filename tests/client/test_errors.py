"""Which error a status becomes."""

import grpc
import pytest
from orthrus_client import (
    AsyncOrthrusClient,
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    OrthrusClient,
    OrthrusError,
    Unavailable,
)
from orthrus_client.errors import grpc_error, http_error, uncoded_error


class Failed(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "what happened"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.NOT_FOUND, InvalidRequest),
        (grpc.StatusCode.UNAVAILABLE, Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceeded),
        (grpc.StatusCode.CANCELLED, Cancelled),
        (grpc.StatusCode.INTERNAL, OrthrusError),
        (grpc.StatusCode.UNKNOWN, OrthrusError),
    ],
)
def test_a_grpc_code_has_its_error(code: grpc.StatusCode, kind: type[OrthrusError]) -> None:
    error = grpc_error(Failed(code), None)
    assert type(error) is kind
    assert str(error) == "what happened"


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "in ensemble 'generate', top_p: 2", InvalidRequest),
        (400, "in ensemble 'generate', unavailable: too many requests", Unavailable),
        (400, "in ensemble 'generate', internal error: boom", OrthrusError),
        (400, "adapter: unknown name 'unavailable: x'", InvalidRequest),
        (200, "in ensemble 'generate', unavailable: the engine failed", Unavailable),
        (404, "unknown model", InvalidRequest),
        (503, "not ready", Unavailable),
        (499, "gone", Cancelled),
        (500, "broken", OrthrusError),
        (200, "in the middle of a stream", OrthrusError),
    ],
)
def test_an_http_status_has_its_error(status: int, message: str, kind: type[OrthrusError]) -> None:
    error = http_error(status, message)
    assert type(error) is kind
    assert str(error) == message


def test_a_text_without_a_code_is_a_refused_request_unless_it_says_otherwise() -> None:
    assert type(uncoded_error("top_p: 2")) is InvalidRequest
    assert type(uncoded_error("unavailable: too many requests")) is Unavailable
    assert type(uncoded_error("internal error: boom")) is OrthrusError


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_nobody_there_is_unavailable(protocol: str) -> None:
    with OrthrusClient("127.0.0.1:1", protocol=protocol) as client:  # type: ignore[arg-type]
        assert not client.is_ready()
        for call in (client.embed, client.generate):
            with pytest.raises(Unavailable):
                call("Hello", timeout=10)


@pytest.mark.parametrize("client", [OrthrusClient, AsyncOrthrusClient])
def test_an_http_address_over_grpc_is_refused_with_the_way_out(client: type[OrthrusClient]) -> None:
    with pytest.raises(ValueError, match=r"'http://127\.0\.0\.1:8000'.*protocol=\"http\""):
        client("http://127.0.0.1:8000")


def test_an_unknown_protocol_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="carrier pigeon"):
        OrthrusClient("127.0.0.1:1", protocol="carrier pigeon")  # type: ignore[arg-type]
