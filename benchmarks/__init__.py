"""What Terzetto costs, as ratios to floors that are measured in the same run.

``python -m benchmarks`` from a checkout. How to read what it prints:
docs/explanation/performance.md. Not part of the package that users install.
"""
