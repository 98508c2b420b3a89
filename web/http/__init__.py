"""HTTP infrastructure that every view uses: bodies, errors, authentication, quotas, OpenAPI."""
