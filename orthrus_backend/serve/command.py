"""The command `orthrus serve`: its options, and what it says. Results go to stdout, all else to stderr."""

import json
import os
import sys
from typing import Annotated, Literal, NoReturn

import typer

from orthrus_backend.config import EngineSettings, PolicyName
from orthrus_backend.default_model import ModelFetchError, ensure_default_model
from orthrus_backend.serve.options import (
    adapters_file_parameter,
    adapters_parameter,
    check_device,
    check_length,
    check_traces,
    embedding_adapter_parameter,
    has_gpu,
    model_parameter,
    settings_parameters,
)
from orthrus_backend.serve.ports import choose_endpoints, exposure
from orthrus_backend.serve.process import ServerError
from orthrus_backend.serve.session import LogLevel, Session

DEFAULTS = EngineSettings()
WHAT, STEP, MACHINE, SERVER = "What is served", "How a step is filled", "What it may use", "The server"
LIMITS = "What is refused"


def serve(
    model: Annotated[
        str,
        typer.Option(
            help="A Hugging Face folder, a .gguf file, or a hub id such as Qwen/Qwen3-0.6B (safetensors or GGUF only).",
            show_default="SmolLM2-135M-Instruct, fetched once",
            rich_help_panel=WHAT,
        ),
    ] = "",
    embedding_model: Annotated[
        str,
        typer.Option(
            help="A folder or hub id of a model for embeddings beside it, encoder or decoder.",
            show_default="the same model",
            rich_help_panel=WHAT,
        ),
    ] = "",
    embedding_adapter: Annotated[
        str,
        typer.Option(
            metavar="PATH|none",
            help="A LoRA adapter (PEFT folder) that makes an embedder of the model. Embeddings have it where they name"
            " no other, and are pooled as its own files say. none: the model as it is.",
            show_default="the default model's own; none for other models",
            rich_help_panel=WHAT,
        ),
    ] = "",
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(
            help="Number format of weights and arithmetic; auto: bfloat16 where the processor is fast at it.",
            rich_help_panel=WHAT,
        ),
    ] = "auto",
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="A LoRA adapter (PEFT folder), which requests then ask for by NAME. May be repeated.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    adapters_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="A text file with a line NAME=PATH for each further adapter. It is read again when it changes:"
            " adapters come and go while requests run.",
            show_default=False,
            rich_help_panel=WHAT,
        ),
    ] = "",
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="Tokens of prompt and output together, at most.",
            show_default="the model's own limit",
            rich_help_panel=WHAT,
        ),
    ] = None,
    policy: Annotated[
        PolicyName,
        typer.Option(
            help="ibs: embeddings and generations share each step by their outstanding work. fcfs: they share it"
            " strictly in order of arrival. homogeneous: a step holds one kind only, by turns.",
            rich_help_panel=STEP,
        ),
    ] = DEFAULTS.scheduler.policy,
    token_budget: Annotated[
        int,
        typer.Option(
            help="Tokens computed in one step, at most. More: higher throughput; fewer: steadier streams.",
            rich_help_panel=STEP,
        ),
    ] = DEFAULTS.scheduler.token_budget,
    chunk_size: Annotated[
        int,
        typer.Option(
            help="Tokens that one turn gives to one request, at most; longer texts take several. 0: the token budget.",
            rich_help_panel=STEP,
        ),
    ] = DEFAULTS.scheduler.chunk_size,
    max_running: Annotated[
        int,
        typer.Option(help="Generations that decode at once, at most; below the token budget.", rich_help_panel=STEP),
    ] = DEFAULTS.scheduler.max_running,
    step_time: Annotated[
        float,
        typer.Option(
            help="Seconds that a step should take, at most, whatever the token budget: steps get as many tokens as"
            " fit by what the latest ones took. 0: no such limit.",
            rich_help_panel=STEP,
        ),
    ] = DEFAULTS.scheduler.step_time,
    device: Annotated[
        str,
        typer.Option(
            metavar="auto|cpu|cuda",
            help="auto: every GPU there is, one engine each; else the CPU.",
            rich_help_panel=MACHINE,
        ),
    ] = "auto",
    kv_memory: Annotated[
        str,
        typer.Option(
            metavar="SIZE|auto",
            help="Memory for keys and values of each instance, such as 512MiB or 4GiB. auto: by what is free.",
            rich_help_panel=MACHINE,
        ),
    ] = "auto",
    instances: Annotated[
        int,
        typer.Option(
            help="Engines for each GPU, or on the CPU. Each holds the weights once.",
            rich_help_panel=MACHINE,
        ),
    ] = 1,
    threads: Annotated[
        int | None,
        typer.Option(
            help="CPU threads of one instance.",
            show_default="the cores, divided by the instances",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    max_queued_requests: Annotated[
        int,
        typer.Option(
            help="Embeddings, and generations, that may wait; beyond it callers are told at once to come back later.",
            rich_help_panel=LIMITS,
        ),
    ] = DEFAULTS.limits.max_queued_requests,
    max_queued_tokens: Annotated[
        int,
        typer.Option(help="Tokens of the embeddings, and of the generations, that may wait.", rich_help_panel=LIMITS),
    ] = DEFAULTS.limits.max_queued_tokens,
    max_texts_per_request: Annotated[
        int, typer.Option(help="Texts in one embedding request, at most.", rich_help_panel=LIMITS)
    ] = DEFAULTS.limits.max_texts_per_request,
    max_request_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Size of one request, at most.", rich_help_panel=LIMITS)
    ] = DEFAULTS.limits.max_request_bytes.human_readable().replace(".0", ""),
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. Triton asks nobody for a password: think twice about any other than 127.0.0.1.",
            rich_help_panel=SERVER,
        ),
    ] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="HTTP port; 0: a free one.", rich_help_panel=SERVER)] = 8000,
    grpc_port: Annotated[int, typer.Option(help="gRPC port; 0: a free one.", rich_help_panel=SERVER)] = 8001,
    metrics_port: Annotated[int, typer.Option(help="Prometheus port; 0: a free one.", rich_help_panel=SERVER)] = 8002,
    start_timeout: Annotated[
        float, typer.Option(help="Seconds until the server must be ready.", rich_help_panel=SERVER)
    ] = 900.0,
    drain_timeout: Annotated[
        float,
        typer.Option(help="Seconds that running requests get to finish at the end.", rich_help_panel=SERVER),
    ] = DEFAULTS.drain.drain_timeout,
    default_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds until a request is ended that sets no timeout of its own; 0: never.", rich_help_panel=SERVER
        ),
    ] = DEFAULTS.limits.default_timeout,
    stream_interval: Annotated[
        int,
        typer.Option(
            help="Tokens in one message of a stream, after its first. More: less processor time for each token.",
            rich_help_panel=SERVER,
        ),
    ] = DEFAULTS.streams.stream_interval,
    log_level: Annotated[
        LogLevel, typer.Option(help="What of Triton's log to show.", rich_help_panel=SERVER)
    ] = "warning",
    request_log: Annotated[
        bool,
        typer.Option(
            help="For each call, at its end, a line of JSON on stderr: id, kind, tokens, times, outcome. No texts.",
            rich_help_panel=SERVER,
        ),
    ] = DEFAULTS.observability.request_log,
    traces: Annotated[
        bool,
        typer.Option(
            "--traces",
            help="OpenTelemetry spans of calls that come with a trace context, sent by OTLP over HTTP to"
            ' OTEL_EXPORTER_OTLP_ENDPOINT. Needs the extra "otel".',
            rich_help_panel=SERVER,
        ),
    ] = DEFAULTS.observability.traces,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other parameter of model_repository/orthrus/config.pbtxt: patience, prefix_caching,"
            " count_expected_output. May be repeated.",
            rich_help_panel=SERVER,
        ),
    ] = None,
) -> None:
    """Serve a model until Ctrl-C or SIGTERM.

    When the server is ready, one line of JSON on stdout gives its addresses: {"http": "127.0.0.1:8000", "grpc": "...",
    "metrics": "..."}; a terminal is spared it. All else goes to stderr.

    Exit status: 0 after a clean stop; 1 when the server did not start, was stopped before it was ready, died or cut
    requests off; 2 when an option is wrong.
    """
    try:
        if instances < 1:
            raise ValueError(f"--instances {instances}: at least 1 is needed")
        parameters = {
            "dtype": dtype,
            "device": device,
            "adapters": adapters_parameter(adapter or []),
            "embedding_adapter": embedding_adapter_parameter(embedding_adapter, model, embedding_model),
            "adapters_file": adapters_file_parameter(adapters_file),
            "policy": policy,
            "token_budget": str(token_budget),
            "chunk_size": str(chunk_size),
            "max_running": str(max_running),
            "step_time": str(step_time),
            "kv_memory": kv_memory,
            "max_model_len": str(max_model_len or ""),
            "threads": str(threads or (_cores() // instances or 1 if instances > 1 else "")),
            "max_queued_requests": str(max_queued_requests),
            "max_queued_tokens": str(max_queued_tokens),
            "max_texts_per_request": str(max_texts_per_request),
            "max_request_bytes": max_request_bytes,
            "drain_timeout": str(drain_timeout),
            "default_timeout": str(default_timeout),
            "drain_file": "",  # the session's own
            "stream_interval": str(stream_interval),
            "request_log": str(request_log),
            "traces": str(traces),
        }
        parameters |= settings_parameters(setting or [], own_options={"model", "embedding_model", *parameters})
        EngineSettings.from_parameters(parameters)  # so that a fault shows now, not when the server is up
        check_device(device)
        check_traces(traces)
        parameters["model"] = model_parameter("--model", model)
        parameters["embedding_model"] = model_parameter("--embedding-model", embedding_model)
        endpoints = choose_endpoints(host, http=http_port, grpc=grpc_port, metrics=metrics_port)
    except ValueError as error:
        fail(str(error), status=2)
    if exposed := exposure(endpoints):
        typer.secho(f"warning: {exposed}", fg=typer.colors.YELLOW, err=True)
    session = Session(parameters, instances, endpoints, drain_timeout, start_timeout, log_level)

    def announce() -> None:
        if not sys.stdout.isatty():
            typer.echo(json.dumps(endpoints.as_dict()))
        for protocol, address in endpoints.as_dict().items():
            typer.echo(f"{protocol:>8}  {address}", err=True)
        typer.echo("Ready. Ctrl-C stops the server.", err=True)

    def farewell() -> None:
        typer.echo(f"Stopping: up to {drain_timeout:g} s for running requests.", err=True)

    try:
        parameters["model"] = parameters["model"] or str(ensure_default_model())
        check_length(parameters["model"], max_model_len or 0)
        typer.echo(f"Loading {parameters['model']} (device: {device if has_gpu() else 'cpu'})", err=True)
        was_ready = session.run(announce, farewell)
    except ValueError as error:
        fail(str(error), status=2)
    except (ModelFetchError, ServerError, RuntimeError) as error:
        fail(str(error))
    if not was_ready:
        typer.echo("Stopped before it was ready.", err=True)
        raise typer.Exit(1)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def fail(message: str, status: int = 1) -> NoReturn:
    """End the program with a message on stderr."""
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(status)
