"""`sluicegate tune`: find limits for a given load.

`tune` is the command. `measure` measures the sink, `worksheet` derives limits from that, and
`findings` prints them.
"""
