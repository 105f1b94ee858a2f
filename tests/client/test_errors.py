"""Which error a status becomes."""

import asyncio

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
from orthrus_client.errors import grpc_error, http_error, server_may_go_on, uncoded_error


class Failed(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str = "what happened") -> None:
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.NOT_FOUND, InvalidRequest),
        (grpc.StatusCode.UNIMPLEMENTED, InvalidRequest),
        (grpc.StatusCode.ALREADY_EXISTS, InvalidRequest),
        (grpc.StatusCode.PERMISSION_DENIED, InvalidRequest),
        (grpc.StatusCode.UNAUTHENTICATED, InvalidRequest),
        (grpc.StatusCode.UNAVAILABLE, Unavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Unavailable),
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


def test_what_no_second_attempt_changes_is_no_overload() -> None:
    for code, details in (
        (grpc.StatusCode.UNAVAILABLE, "This protocol is restricted, expecting header 'x'"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 8)"),
    ):
        assert type(grpc_error(Failed(code, details), None)) is InvalidRequest


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "in ensemble 'generate', top_p: 2", InvalidRequest),
        (400, "in ensemble 'generate', unavailable: too many requests", Unavailable),
        (400, "in ensemble 'generate', internal error: boom", OrthrusError),
        (400, "in ensemble 'embed', deadline exceeded: the request's time is over", DeadlineExceeded),
        (400, "cancelled: the request was ended", Cancelled),
        (400, "adapter: unknown name 'unavailable: x'", InvalidRequest),
        (200, "in ensemble 'generate', unavailable: the engine failed", Unavailable),
        (404, "unknown model", InvalidRequest),
        (401, "who are you", InvalidRequest),
        (403, "This API is restricted", InvalidRequest),
        (409, "already there", InvalidRequest),
        (413, "too large", InvalidRequest),
        (408, "too slow", Unavailable),
        (429, "too often", Unavailable),
        (501, "not for this model", InvalidRequest),
        (502, "nobody there", Unavailable),
        (504, "too late", DeadlineExceeded),
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
    assert type(uncoded_error("in ensemble 'embed', deadline exceeded: too late")) is DeadlineExceeded


def test_a_deadline_of_the_servers_has_the_code_of_a_cancellation_and_is_told_by_its_text() -> None:
    late = Failed(grpc.StatusCode.CANCELLED, "in ensemble 'embed', deadline exceeded: the request's time is over")
    assert type(grpc_error(late, None)) is DeadlineExceeded


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        (DeadlineExceeded(), True),
        (Cancelled(), True),
        (KeyboardInterrupt(), True),
        (GeneratorExit(), True),
        (asyncio.CancelledError(), True),
        (InvalidRequest(), False),
        (Unavailable(), False),
        (OrthrusError(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_server_may_go_on_unless_it_has_answered(error: BaseException, goes_on: bool) -> None:
    assert server_may_go_on(error) is goes_on


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
