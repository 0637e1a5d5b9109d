"""What sinks, sources and the command line share about one client or server."""
