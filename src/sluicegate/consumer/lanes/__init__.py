"""The order of a consumer's unsettled messages, and the capacity for them. No clock, no task, no
I/O.

`keys` determines the lane of a record, `window` whether there is room for it. `schedule` holds the
messages: ready, backing off, blocked, or waiting in their lanes; `held` the keys that do not
continue (parked, crowded, or of incomplete events), `batches` the batches being formed. `arrivals`
is a schedule without lanes, for pipes.
"""
