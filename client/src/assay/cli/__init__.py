"""The command line of the client: `assay`."""
