"""`/v1/jobs`: submission, results, events and files of jobs."""
