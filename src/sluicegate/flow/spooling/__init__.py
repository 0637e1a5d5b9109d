"""A spool: items on disk, between the code that makes them and their destination.

- `spool`: its options, and the batcher that writes to it; `sinks`, `source`: its two ends;
  `sending`: the pipe from one to the other.
- `running`: the loop's side of the files; `store`: the thread's side; `segment`: one file;
  `parked`: the file of items that cannot be delivered; `owner`: the locks on the folder.
- `looks`: the views of the command line; `serving`: the socket of its owner.
- `encoding`: items as bytes; `ranges`: sets of offsets.
"""
