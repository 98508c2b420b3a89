"""Operating-system processes: supervision, scaling, the embedded Redis, Flower."""
