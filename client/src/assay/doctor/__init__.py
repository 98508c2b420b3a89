"""What `assay doctor` looks at: the server over HTTP, and this host if it is one of the server's."""
