"""Calibration of the judge of a job."""
