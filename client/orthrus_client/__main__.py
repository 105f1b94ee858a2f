"""`python -m orthrus_client` is `orthrus-client`."""

from orthrus_client.cli.app import main

main()
