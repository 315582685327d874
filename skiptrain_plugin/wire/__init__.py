"""Authenticated, encrypted messages between nodes: formats, keys and sockets, without the framework."""
