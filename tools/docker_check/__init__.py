"""`make docker-check`: docker/Dockerfile.cpu carried out in a Debian root, without a container engine."""
