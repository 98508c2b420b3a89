"""The scorers that come with Assay: small pure functions, each with a model of its options."""
