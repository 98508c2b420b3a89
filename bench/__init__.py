"""What measures us. Each command prints ratios, taken side by side in one run: figures depend on the machine."""
