"""Items, rows and their values, for several technologies: JSON, fields, compression, TLS."""
