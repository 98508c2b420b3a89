"""Servers, fixtures and test doubles that several tests share. The doubles stand at the wire, not inside our code."""
