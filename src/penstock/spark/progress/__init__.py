"""Progress of a running write, and the pictures and page of its report."""
