"""The OpenAPI document and its page: `/openapi.json` and `/docs`."""
