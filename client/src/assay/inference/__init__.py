"""Files of inference jobs, on the client's side: contexts in, answers out, and going on after a break."""
