"""Who answers the rows of an inference job: `backend.py` says what a backend brings, each of the others is one."""
