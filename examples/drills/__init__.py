"""Drills: a service in trouble, the view of its operator, and the steps that end the incident."""

NAMES = ("lock", "outage", "refusal", "poison", "slow", "disk", "black_hole")
"""The drills. `ALERTS` of each has the alerts that fire, and the minute of the trouble by which they
do; `run` returns the accepted events that are nowhere.
"""
