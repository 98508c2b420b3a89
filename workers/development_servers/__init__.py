"""Parts that the development API and the development policy share."""
