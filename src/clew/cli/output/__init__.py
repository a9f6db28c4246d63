"""What commands print: for people on a terminal, in pipes, and as JSON."""
