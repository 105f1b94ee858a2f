"""What the endpoints of the page share."""

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from orthrus_client.gateway.demo.corpora import Corpora
from orthrus_client.gateway.load import Load
from orthrus_client.sample_corpus import SampleCorpus


@dataclass(frozen=True, slots=True)
class Demo:
    """One for the whole application. `closing` is set when the gateway is about to end."""

    sample: SampleCorpus
    corpora: Corpora
    load: Load
    closing: asyncio.Event


def _demo(request: Request) -> Demo:
    demo: Demo = request.app.state.demo
    return demo


DemoDep = Annotated[Demo, Depends(_demo)]
