"""Devices of this host: discovery, allocation to slots, NVML readings."""
