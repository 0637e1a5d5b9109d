"""The state of a consumer, as shown to operators.

`report` has the values of a report and the reasons for a wait. `stats`, `health` and `explain` are
taken from `places`, which knows where each message is; they never change anything. `probes` answers
over HTTP.
"""
