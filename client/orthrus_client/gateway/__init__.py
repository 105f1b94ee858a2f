"""An HTTP server that speaks OpenAI's API and asks an Orthrus server over gRPC. Needs the extra `gateway`; no torch."""
