"""The pages for people, and what they ask of the API beyond what programs do."""
