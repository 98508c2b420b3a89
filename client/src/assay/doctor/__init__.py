"""Checks of `assay doctor`: the server over HTTP, and this host if it has a checkout of the server."""
