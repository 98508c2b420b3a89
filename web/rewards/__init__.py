"""Reward endpoints of trainers: `/get_reward`, `/rm`, `/verify`, and the named rewards."""
